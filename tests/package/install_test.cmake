# SPDX-License-Identifier: Apache-2.0
# cmake --install into a folder, moves it, and builds and runs the consumer project against it: with find_package and with pkg-config.
#   cmake -DBUILD=folder -DWORK=folder -DCONSUMER=folder -DCOMPONENTS=model -DCOMPILER=c++ -P install_test.cmake

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "failed (${status}): ${command}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/first)
file(RENAME ${WORK}/first ${WORK}/moved)

# Nothing that is installed as text may know the folders of the build.
file(GLOB_RECURSE texts ${WORK}/moved/*.cmake ${WORK}/moved/*.pc ${WORK}/moved/*.hpp)
foreach(text ${texts})
  file(STRINGS ${text} leaks REGEX "${BUILD}|${WORK}/first")
  if(leaks)
    message(FATAL_ERROR "${text} holds a path of the build: ${leaks}")
  endif()
endforeach()

run(${CMAKE_COMMAND} -S ${CONSUMER} -B ${WORK}/consumer -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=${COMPILER}
  -DCMAKE_PREFIX_PATH=${WORK}/moved -DHEED_COMPONENTS=${COMPONENTS} ${CONSUMER_SETTINGS})
run(${CMAKE_COMMAND} --build ${WORK}/consumer)
run(${WORK}/consumer/attention)
message(STATUS "find_package: ${output}")
if(COMPONENTS STREQUAL "model")
  run(${WORK}/consumer/model)
  message(STATUS "heed::model: ${output}")
endif()

file(GLOB_RECURSE pc ${WORK}/moved/heed.pc)
get_filename_component(pc_folder ${pc} DIRECTORY)
get_filename_component(lib_folder ${pc_folder} DIRECTORY)
set(ENV{PKG_CONFIG_PATH} ${pc_folder})
run(pkg-config --cflags --libs heed)
separate_arguments(flags UNIX_COMMAND "${output}")
run(${COMPILER} -std=c++20 ${CONSUMER_FLAGS} ${CONSUMER}/attention.cpp -o ${WORK}/with_pkg_config ${flags} -Wl,-rpath,${lib_folder})
run(${WORK}/with_pkg_config)
message(STATUS "pkg-config: ${output}")

# An unknown component is refused by name.
execute_process(COMMAND ${CMAKE_COMMAND} -S ${CONSUMER} -B ${WORK}/unknown -G Ninja -DCMAKE_CXX_COMPILER=${COMPILER}
  -DCMAKE_PREFIX_PATH=${WORK}/moved -DHEED_COMPONENTS=telepathy RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
if(status EQUAL 0)
  message(FATAL_ERROR "find_package(heed COMPONENTS telepathy) did not fail")
endif()
