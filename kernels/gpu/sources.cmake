# The shared GPU kernels, for every vendor: absolute paths.
set(PLUMB_GPU_SOURCES)
foreach(source argmax cast causal_conv1d causal_conv1d_backward causal_mask checksum components convolution cross_entropy elementwise embedding embedding_backward
    float64_products gated_rms_norm gated_rms_norm_backward gemm gpu_device gpu_ops group_norm held_back id_order index_add layer_norm moves norms_backward one_row
    plain plain_gemm pools quantised quantised_row reductions rms_norm rotary row_chain sdpa sdpa_backward sdpa_decode slots softmax softmax_backward ssd_scan ssd_scan_backward
    ssd_step top_k)
  list(APPEND PLUMB_GPU_SOURCES "${CMAKE_CURRENT_LIST_DIR}/${source}.cu")
endforeach()
