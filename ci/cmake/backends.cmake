# One line per backend that this version does not have yet; asking for one is an error.
foreach(backend CUDA HIP)
  if(PLUMB_${backend} STREQUAL "ON")
    message(FATAL_ERROR "PLUMB_${backend}=ON, but this version has no ${backend} backend; "
                        "configure with -DPLUMB_${backend}=AUTO or OFF")
  endif()
  message(STATUS "${backend}: not built: this version has no ${backend} backend")
endforeach()
