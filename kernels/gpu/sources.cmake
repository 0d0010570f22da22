# The shared GPU kernels, for every vendor: absolute paths.
set(PLUMB_GPU_SOURCES)
foreach(source elementwise gpu_device gpu_ops lookup norms product rotary sdpa sdpa_decode softmax)
  list(APPEND PLUMB_GPU_SOURCES "${CMAKE_CURRENT_LIST_DIR}/${source}.cu")
endforeach()
