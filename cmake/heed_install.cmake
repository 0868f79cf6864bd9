# SPDX-License-Identifier: Apache-2.0
# cmake --install: libraries, headers, the program, find_package(heed) and heed.pc. The result may be moved to another folder.
include(CMakePackageConfigHelpers)

set(heed_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/heed)
set(heed_library_destinations
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

install(TARGETS heed EXPORT heed_targets ${heed_library_destinations})
install(EXPORT heed_targets NAMESPACE heed:: DESTINATION ${heed_package_dir})

if(HEED_MODEL)
  install(TARGETS heed_model EXPORT heed_model_targets ${heed_library_destinations})
  install(EXPORT heed_model_targets NAMESPACE heed:: DESTINATION ${heed_package_dir})
  if(NOT BUILD_SHARED_LIBS)
    install(FILES ${PROJECT_SOURCE_DIR}/cmake/FindOneDnn.cmake ${PROJECT_SOURCE_DIR}/cmake/FindPcre2.cmake DESTINATION ${heed_package_dir})
  endif()
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/heedConfig.cmake.in ${PROJECT_BINARY_DIR}/heedConfig.cmake
  INSTALL_DESTINATION ${heed_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/heedConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/heedConfig.cmake ${PROJECT_BINARY_DIR}/heedConfigVersion.cmake DESTINATION ${heed_package_dir})

# pkg-config: with a static library everybody needs the private libraries, whether or not --static is asked for.
file(RELATIVE_PATH heed_pc_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" heed_pc_prefix "${heed_pc_prefix}")
set(heed_pc_static_libs "")
if(NOT BUILD_SHARED_LIBS)
  set(heed_pc_static_libs " -lstdc++ -lm -lpthread")
  if(NOT HEED_STD_THREADS)
    list(TRANSFORM OpenMP_CXX_LIB_NAMES PREPEND "-l" OUTPUT_VARIABLE heed_openmp_libs)
    list(JOIN heed_openmp_libs " " heed_openmp_libs)
    string(APPEND heed_pc_static_libs " ${heed_openmp_libs}")
  endif()
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/heed.pc.in ${PROJECT_BINARY_DIR}/heed.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/heed.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/heed)
