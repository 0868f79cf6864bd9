# SPDX-License-Identifier: Apache-2.0
# oneDNN as a library and its headers: target OneDnn::dnnl.
find_path(OneDnn_INCLUDE_DIR dnnl.h)
find_library(OneDnn_LIBRARY dnnl)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OneDnn REQUIRED_VARS OneDnn_LIBRARY OneDnn_INCLUDE_DIR)
if(OneDnn_FOUND AND NOT TARGET OneDnn::dnnl)
  add_library(OneDnn::dnnl UNKNOWN IMPORTED)
  set_target_properties(OneDnn::dnnl PROPERTIES IMPORTED_LOCATION ${OneDnn_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${OneDnn_INCLUDE_DIR})
endif()
mark_as_advanced(OneDnn_INCLUDE_DIR OneDnn_LIBRARY)
