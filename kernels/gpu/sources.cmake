# The shared GPU kernels, for every vendor: absolute paths.
set(PLUMB_GPU_SOURCES)
foreach(source argmax cast checksum causal_conv1d causal_mask components convolution elementwise embedding float64_products gated_rms_norm gemm gpu_device gpu_ops group_norm held_back index_add layer_norm moves
    one_row pools quantised reductions rms_norm rotary row_chain sdpa sdpa_backward sdpa_decode slots softmax ssd_scan ssd_scan_backward ssd_step top_k unfinished_backward)
  list(APPEND PLUMB_GPU_SOURCES "${CMAKE_CURRENT_LIST_DIR}/${source}.cu")
endforeach()
