# SPDX-License-Identifier: Apache-2.0
# Builds the shared libraries (portable kernels only and without optimisation: this is about linking), checks what they export, and
# uses the installed result from the consumer project.
#   cmake -DSOURCE=folder -DWORK=folder -DCOMPILER=c++ -DNM=nm -P shared_test.cmake

foreach(step
    "-S;${SOURCE};-B;${WORK}/build;-G;Ninja;-DCMAKE_BUILD_TYPE=Debug;-DCMAKE_CXX_COMPILER=${COMPILER};-DBUILD_SHARED_LIBS=ON;-DHEED_ISAS=generic;-DHEED_TESTS=OFF;-DHEED_EXAMPLES=OFF;-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}"
    "--build;${WORK}/build")
  execute_process(COMMAND ${CMAKE_COMMAND} ${step} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "cmake ${step}:\n${output}")
  endif()
endforeach()

# Hidden visibility: a shared library offers the public API (vtables and type names of its classes included), and of what is internal only
# what heed::model runs on: threads, scratch memory, error texts, the choice of kernels.
set(shared_with_model "heed::base::(Scratch::|SerialOpenMp::|active_isa|num_threads|run_tasks|throw_invalid)|heed::kernels::[a-z0-9_]+_kernels_of")
foreach(library heed heed_model)
  execute_process(COMMAND ${NM} --dynamic --defined-only --demangle ${WORK}/build/src/lib${library}.so OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE "\n" ";" symbols "${symbols}")
  set(count 0)
  foreach(symbol ${symbols})
    string(REGEX REPLACE "^[0-9a-f]* [A-Za-z] " "" name "${symbol}")
    math(EXPR count "${count} + 1")
    string(REGEX REPLACE "\\(.*" "" plain "${name}")  # arguments may name internal types
    if(plain MATCHES "heed::(base|kernels|mask|rope|kv|attention|nn)::" AND NOT plain MATCHES "${shared_with_model}")
      message(FATAL_ERROR "lib${library}.so exports an internal symbol: ${name}")
    endif()
  endforeach()
  if(count LESS 10)
    message(FATAL_ERROR "lib${library}.so exports ${count} symbols only")
  endif()
  message(STATUS "lib${library}.so exports ${count} symbols: the public API and what heed::model runs on")
endforeach()

set(BUILD ${WORK}/build)
set(WORK ${WORK}/install)
include(${CMAKE_CURRENT_LIST_DIR}/install_test.cmake)
