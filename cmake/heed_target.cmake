# SPDX-License-Identifier: Apache-2.0
# Compiler settings that every target of this project shares; nothing here leaks to users.

add_library(heed_settings INTERFACE)
target_compile_options(heed_settings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor
  $<$<BOOL:${HEED_WARNINGS_AS_ERRORS}>:-Werror>
  # GCC 12 reports string concatenation wrongly (its bug 105329).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
  # Exact means exact: the compiler may fuse a multiply and an add only where the kernels ask for it.
  -ffp-contract=off)
if(HEED_SANITIZE)
  target_compile_options(heed_settings INTERFACE -fsanitize=${HEED_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(heed_settings INTERFACE -fsanitize=${HEED_SANITIZE})
endif()

if(HEED_FUZZ)
  target_compile_options(heed_settings INTERFACE -fsanitize=fuzzer-no-link)
endif()

find_package(Threads REQUIRED)
if(NOT HEED_STD_THREADS)
  find_package(OpenMP REQUIRED COMPONENTS CXX)
endif()
