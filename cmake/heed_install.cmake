# cmake --install: libraries, headers, find_package(heed) and heed.pc.
include(CMakePackageConfigHelpers)

install(TARGETS heed EXPORT heed_targets FILE_SET HEADERS)
if(HEED_MODEL)
  install(TARGETS heed_model EXPORT heed_targets FILE_SET HEADERS)
endif()
