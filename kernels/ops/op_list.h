// Every op once: its name and its row (kernels/ops/table.h). Read by the enumeration and by
// the table, each with a PLUMB_OP of its own. Those from gated_activation on are fused: they
// have a default composition, and those from linear_backward on nothing else, but of a plugin.
//
// No include guard: it is read several times.

// clang-format off
PLUMB_OP(embedding, .operands = signature("out[*,C] = ids[*]: ids, weight[V,C]: narrow"), .bits = OpBits::exact)
PLUMB_OP(rms_norm, .operands = signature("out[*,C] = x[*,C], weight[C]"), .sums = "C",
         .flops = 4, .bits = OpBits::scaled, .in_place = true)  // square, sum, times the norm, times the weight
PLUMB_OP(layer_norm, .operands = signature("out[*,C] = x[*,C], weight[C], bias[C]?"), .sums = "CC",
         .flops = 7, .bits = OpBits::scaled, .number = NumberField::eps)  // sum, minus mean, square, sum, norm, weight, bias
PLUMB_OP(linear, .operands = signature("out[*,N] = x[*,K], weight[N,K]: narrow, bias[N]?"), .sums = "K",
         .flops = 2, .per = "K", .of_bias = 1)
PLUMB_OP(activation, .operands = kUnary, .dtypes = kReals, .flops = 4, .formula = Formula::silu)  // silu's negation, exp, sum, quotient
PLUMB_OP(add, .operands = kBinary, .dtypes = kNumbersAndBool, .flops = 1, .formula = Formula::add)
PLUMB_OP(mul, .operands = kBinary, .dtypes = kNumbersAndBool, .flops = 1, .formula = Formula::mul)
PLUMB_OP(scale, .operands = kUnary, .dtypes = kReals, .flops = 1, .formula = Formula::multiply)
PLUMB_OP(softmax, .operands = signature("out[*,C] = x[*,C]"), .sums = "C",
         .flops = 5, .in_place = true)  // maximum, minus it, exp, sum, quotient
PLUMB_OP(matmul, .operands = signature("out[B,H,M,N]: sums = a[B,H,M,K], b[B,G,K,N]; G divides H"), .dtypes = kFactors,
         .transposed = signature("out[B,H,M,N]: sums = a[B,H,M,K], b[B,G,N,K]; G divides H"), .sums = "K",
         .flops = 2, .per = "K")
PLUMB_OP(masked_add, .operands = signature("out[B,H,T,S] = x[B,H,T,S], mask[1|B,1|H,T,S]"), .flops = 1, .in_place = true)
PLUMB_OP(repeat_heads, .operands = signature("out[B,H,S,D] = x[B,G,S,D]; G divides H"), .bits = OpBits::exact)
PLUMB_OP(rotary_table, .operands = signature("cos[B,T,2F], sin[B,T,2F] = positions[B,T]: i64, inv_freq[F]: wide"),
         .flops = 3, .number = NumberField::attention_scaling)
PLUMB_OP(rotary, .operands = signature("out[B,H,T,D] = x[B,H,T,D], cos[1|B,T,R], sin[1|B,T,R]"), .flops = 3)
PLUMB_OP(causal_mask, .operands = signature("out[*]: any = key_valid[B,S]: bool?, explicit_mask[*]: any?"), .bits = OpBits::exact)
PLUMB_OP(copy, .operands = signature("out[*]: same = x[*]: same"), .dtypes = kAllDTypes, .bits = OpBits::exact)
PLUMB_OP(cast, .operands = signature("out[*]: any = x[*]: any"), .dtypes = kAllDTypes, .bits = OpBits::exact)
PLUMB_OP(mask_rows, .operands = signature("out[B,T,C] = x[B,T,C], valid[B,T]: bool"), .bits = OpBits::exact, .in_place = true)
PLUMB_OP(causal_conv1d, .operands = signature("out[B,T,C], state_after[B,C,W]? = x[B,T,C], weight[C,1,W], bias[C]?, state_before[B,C,W]?"),
         .sums = "W", .flops = 2, .per = "W", .more = 4)  // and silu
PLUMB_OP(ssd_scan, .operands = signature("y[B,T,H,P]: any, state_after[B,H,P,N]: wide? = x[B,T,H,P], dt[B,T,H], b[B,T,G,N], "
                               "c[B,T,G,N], a_log[H], d[H], dt_bias[H], state[B,H,P,N]: wide?; G divides H"),
         .flops = 5, .per = "N")  // decay, input, output
PLUMB_OP(gated_rms_norm, .operands = signature("out[*,C] = x[*,C], gate[*,C]: floating, weight[C]: floating"),
         .flops = 9)  // silu, its product, and the norm
PLUMB_OP(div, .operands = kBinary, .dtypes = kReals, .flops = 1, .formula = Formula::div)
PLUMB_OP(add_scalar, .operands = kUnary, .dtypes = kReals, .flops = 1, .formula = Formula::add_scalar)
PLUMB_OP(transpose, .operands = signature("out[*,N,M] = x[*,M,N]"), .bits = OpBits::exact)
PLUMB_OP(mask_fill, .operands = signature("out[*] = x[*], mask[*]: bool"), .bits = OpBits::exact, .in_place = true)
PLUMB_OP(position_ids, .operands = signature("out[B,T]: i64 = valid[B,T]: bool?"), .bits = OpBits::exact)
PLUMB_OP(rsqrt, .operands = kUnary, .dtypes = kReals, .flops = 2, .formula = Formula::rsqrt)
PLUMB_OP(minimum, .operands = kBinary, .dtypes = kNumbersAndBool, .flops = 1, .formula = Formula::minimum)
PLUMB_OP(cumsum, .operands = signature("out[*]: total = x[*]"), .dtypes = kNumbersAndBool, .flops = 1, .along_axis = true, .in_place = true)
PLUMB_OP(neg, .operands = kUnary, .dtypes = kNumbers, .flops = 1, .bits = OpBits::exact, .formula = Formula::neg)
PLUMB_OP(abs, .operands = kUnary, .dtypes = kNumbers, .flops = 1, .bits = OpBits::exact, .formula = Formula::abs)
PLUMB_OP(sign, .operands = kUnary, .dtypes = kNumbersAndBool, .flops = 1, .bits = OpBits::exact, .formula = Formula::sign)
PLUMB_OP(floor, .operands = kUnary, .dtypes = kReals, .flops = 1, .bits = OpBits::exact, .formula = Formula::floor)
PLUMB_OP(ceil, .operands = kUnary, .dtypes = kReals, .flops = 1, .bits = OpBits::exact, .formula = Formula::ceil)
PLUMB_OP(round, .operands = kUnary, .dtypes = kReals, .flops = 1, .bits = OpBits::exact, .formula = Formula::round)
PLUMB_OP(relu, .operands = kUnary, .dtypes = kReals, .flops = 1, .bits = OpBits::exact, .formula = Formula::relu)
PLUMB_OP(leaky_relu, .operands = kUnary, .dtypes = kReals, .flops = 1, .formula = Formula::leaky_relu)
PLUMB_OP(reciprocal, .operands = kUnary, .dtypes = kReals, .flops = 1, .formula = Formula::reciprocal)
PLUMB_OP(square, .operands = kUnary, .dtypes = kReals, .flops = 1, .formula = Formula::square)
PLUMB_OP(sqrt, .operands = kUnary, .dtypes = kReals, .flops = 1, .formula = Formula::sqrt)
PLUMB_OP(exp, .operands = kUnary, .dtypes = kReals, .flops = 2, .formula = Formula::exp)
PLUMB_OP(expm1, .operands = kUnary, .dtypes = kReals, .flops = 2, .formula = Formula::expm1)
PLUMB_OP(log, .operands = kUnary, .dtypes = kReals, .flops = 2, .formula = Formula::log)
PLUMB_OP(log1p, .operands = kUnary, .dtypes = kReals, .flops = 2, .formula = Formula::log1p)
PLUMB_OP(sin, .operands = kUnary, .dtypes = kReals, .flops = 2, .formula = Formula::sin)
PLUMB_OP(cos, .operands = kUnary, .dtypes = kReals, .flops = 2, .formula = Formula::cos)
PLUMB_OP(erf, .operands = kUnary, .dtypes = kReals, .flops = 2, .formula = Formula::erf)
PLUMB_OP(tanh, .operands = kUnary, .dtypes = kReals, .flops = 2, .formula = Formula::tanh)
PLUMB_OP(silu, .operands = kUnary, .dtypes = kReals, .flops = 4, .formula = Formula::silu)
PLUMB_OP(gelu, .operands = kUnary, .dtypes = kReals, .flops = 4, .formula = Formula::gelu)
PLUMB_OP(gelu_tanh, .operands = kUnary, .dtypes = kReals, .flops = 4, .formula = Formula::gelu_tanh)
PLUMB_OP(sigmoid, .operands = kUnary, .dtypes = kReals, .flops = 4, .formula = Formula::sigmoid)
PLUMB_OP(softplus, .operands = kUnary, .dtypes = kReals, .flops = 4, .formula = Formula::softplus)
PLUMB_OP(elu, .operands = kUnary, .dtypes = kReals, .flops = 3, .formula = Formula::elu)
PLUMB_OP(sub, .operands = kBinary, .dtypes = kNumbers, .flops = 1, .formula = Formula::sub)
PLUMB_OP(maximum, .operands = kBinary, .dtypes = kNumbersAndBool, .flops = 1, .formula = Formula::maximum)
PLUMB_OP(pow, .operands = kBinary, .dtypes = kReals, .flops = 4, .formula = Formula::pow)
PLUMB_OP(eq, .operands = kComparison, .dtypes = kNumbersAndBool, .flops = 1, .bits = OpBits::exact, .formula = Formula::eq)
PLUMB_OP(ne, .operands = kComparison, .dtypes = kNumbersAndBool, .flops = 1, .bits = OpBits::exact, .formula = Formula::ne)
PLUMB_OP(lt, .operands = kComparison, .dtypes = kNumbersAndBool, .flops = 1, .bits = OpBits::exact, .formula = Formula::lt)
PLUMB_OP(le, .operands = kComparison, .dtypes = kNumbersAndBool, .flops = 1, .bits = OpBits::exact, .formula = Formula::le)
PLUMB_OP(gt, .operands = kComparison, .dtypes = kNumbersAndBool, .flops = 1, .bits = OpBits::exact, .formula = Formula::gt)
PLUMB_OP(ge, .operands = kComparison, .dtypes = kNumbersAndBool, .flops = 1, .bits = OpBits::exact, .formula = Formula::ge)
PLUMB_OP(logical_and, .operands = kLogical, .dtypes = kNumbersAndBool, .flops = 1, .bits = OpBits::exact, .formula = Formula::logical_and)
PLUMB_OP(logical_or, .operands = kLogical, .dtypes = kNumbersAndBool, .flops = 1, .bits = OpBits::exact, .formula = Formula::logical_or)
PLUMB_OP(where, .operands = kWhere, .dtypes = kNumbersAndBool, .flops = 1, .bits = OpBits::exact, .formula = Formula::where)
PLUMB_OP(affine, .operands = kUnary, .dtypes = kReals, .flops = 2, .formula = Formula::affine)
PLUMB_OP(multiply_add, .operands = kTernary, .dtypes = kReals, .flops = 2, .formula = Formula::multiply_add)
PLUMB_OP(sum, .operands = kTotal, .dtypes = kNumbersAndBool, .flops = 1, .reduction = Reduction::sum)
PLUMB_OP(mean, .operands = kReduction, .dtypes = kReals, .flops = 1, .reduction = Reduction::mean)
PLUMB_OP(prod, .operands = kTotal, .dtypes = kNumbersAndBool, .flops = 1, .reduction = Reduction::prod)
PLUMB_OP(min, .operands = kReduction, .dtypes = kNumbersAndBool, .flops = 1, .bits = OpBits::exact, .reduction = Reduction::min)
PLUMB_OP(max, .operands = kReduction, .dtypes = kNumbersAndBool, .flops = 1, .bits = OpBits::exact, .reduction = Reduction::max)
PLUMB_OP(argmin, .operands = kReductionToIndex, .dtypes = kNumbers, .flops = 1, .bits = OpBits::exact, .reduction = Reduction::argmin)
PLUMB_OP(argmax, .operands = kReductionToIndex, .dtypes = kNumbers, .flops = 1, .bits = OpBits::exact, .reduction = Reduction::argmax)
PLUMB_OP(any, .operands = kReductionToBool, .dtypes = kNumbersAndBool, .flops = 1, .bits = OpBits::exact, .reduction = Reduction::any)
PLUMB_OP(all, .operands = kReductionToBool, .dtypes = kNumbersAndBool, .flops = 1, .bits = OpBits::exact, .reduction = Reduction::all)
PLUMB_OP(log_sum_exp, .operands = kReduction, .dtypes = kReals, .flops = 4, .reduction = Reduction::log_sum_exp)
PLUMB_OP(norm, .operands = kReduction, .dtypes = kReals, .flops = 2, .reduction = Reduction::norm)
PLUMB_OP(group_norm, .operands = signature("out[*] = x[*], weight[C]?, bias[C]?"), .flops = 7,
         .bits = OpBits::scaled, .in_place = true)  // as layer_norm
PLUMB_OP(max_pool2d, .operands = kResampled, .flops = 1, .per_input = true, .bits = OpBits::exact)
PLUMB_OP(avg_pool2d, .operands = kResampled, .flops = 1, .per_input = true)
PLUMB_OP(upsample_nearest2d, .operands = kResampled, .bits = OpBits::exact)
PLUMB_OP(conv1d, .operands = signature("out[B,O,Q] = x[B,C,W], weight[O,D,L], bias[O]?"), .flops = 2,
         .per = "DL", .of_bias = 1)
PLUMB_OP(conv2d, .operands = signature("out[B,O,P,Q] = x[B,C,H,W], weight[O,D,K,L], bias[O]?"), .flops = 2,
         .per = "DKL", .of_bias = 1)
PLUMB_OP(conv_transpose1d, .operands = signature("out[B,O,Q] = x[B,C,W], weight[C,D,L], bias[O]?"), .flops = 2,
         .per = "DL", .per_input = true)
PLUMB_OP(conv_transpose2d, .operands = signature("out[B,O,P,Q] = x[B,C,H,W], weight[C,D,K,L], bias[O]?"), .flops = 2,
         .per = "DKL", .per_input = true)
PLUMB_OP(gemm, .operands = kGemm, .dtypes = kFactors, .sums = "K", .flops = 2, .per = "K", .more = 4)  // alpha, beta, bias, function
PLUMB_OP(index_select, .operands = signature("out[..]: same = x[..]: same, ids[I]: ids"), .dtypes = kAllDTypes, .bits = OpBits::exact, .along_axis = true)
PLUMB_OP(gather, .operands = signature("out[..]: same = x[..]: same, ids[..]: ids"), .dtypes = kAllDTypes, .bits = OpBits::exact, .along_axis = true)
PLUMB_OP(index_add, .operands = signature("out[..] = x[..], ids[I]: ids, source[..]"), .dtypes = kNumbersAndBool, .flops = 1, .along_axis = true, .in_place = true)
PLUMB_OP(scatter_add, .operands = signature("out[..] = x[..], ids[..]: ids, source[..]"), .dtypes = kNumbersAndBool, .flops = 1, .along_axis = true, .in_place = true)
PLUMB_OP(concat, .operands = signature("out[..]: same = a[..]: same, b[..]: same"), .dtypes = kAllDTypes, .bits = OpBits::exact, .along_axis = true)
PLUMB_OP(permute, .operands = kMove, .dtypes = kAllDTypes, .bits = OpBits::exact)
PLUMB_OP(pad, .operands = kMove, .dtypes = kAllDTypes, .bits = OpBits::exact)
PLUMB_OP(flip, .operands = kMove, .dtypes = kAllDTypes, .bits = OpBits::exact)
PLUMB_OP(roll, .operands = kMove, .dtypes = kAllDTypes, .bits = OpBits::exact)
PLUMB_OP(top_k, .operands = signature("values[*,K], ids[*,K]: i64 = x[*,C]"), .dtypes = kNumbers, .bits = OpBits::exact)
PLUMB_OP(fill, .operands = signature("out[..]: same"), .dtypes = kAllDTypes, .bits = OpBits::exact)
PLUMB_OP(arange, .operands = signature("out[..]: same"), .dtypes = kAllDTypes, .bits = OpBits::exact)
PLUMB_OP(uniform, .operands = signature("out[..]"), .bits = OpBits::exact)
PLUMB_OP(normal, .operands = signature("out[..]"), .bits = OpBits::exact)
PLUMB_OP(activation_backward, .operands = signature("d_x[*] = x[*], d_out[*]"), .dtypes = kReals, .flops = 12, .formula = Formula::silu_backward)
PLUMB_OP(gated_activation_backward, .operands = signature("d_gate[*], d_up[*] = gate[*], up[*], d_out[*]"), .dtypes = kReals, .flops = 18,
         .formula = Formula::gate_backward_silu)
PLUMB_OP(softcap_backward, .operands = kBackward, .dtypes = kReals, .flops = 10, .number = NumberField::cap, .formula = Formula::softcap_backward)
PLUMB_OP(sigmoid_backward, .operands = kBackward, .dtypes = kReals, .flops = 8, .formula = Formula::sigmoid_backward)
PLUMB_OP(softplus_backward, .operands = kBackward, .dtypes = kReals, .flops = 8, .formula = Formula::softplus_backward)
PLUMB_OP(relu_backward, .operands = kBackward, .dtypes = kReals, .flops = 1, .bits = OpBits::exact, .formula = Formula::relu_backward)
PLUMB_OP(softmax_backward, .operands = signature("d_x[*,C] = y[*,C], d_out[*,C]"), .sums = "C", .flops = 4)
PLUMB_OP(rms_norm_backward, .operands = signature("d_x[*,C], d_weight[C]? = x[*,C], weight[C], d_out[*,C]"),
         .flops = 12)  // two sums, two products each; the gradient of x; that of the weight
PLUMB_OP(layer_norm_backward, .operands = signature("d_x[*,C], d_weight[C]?, d_bias[C]? = x[*,C], weight[C], d_out[*,C]"),
         .flops = 16, .number = NumberField::eps)
PLUMB_OP(gated_rms_norm_backward, .operands = signature("d_x[*,C], d_gate[*,C]: floating, d_weight[C]: floating? = x[*,C], "
                               "gate[*,C]: floating, weight[C]: floating, d_out[*,C]"), .flops = 28)
PLUMB_OP(embedding_backward, .operands = signature("d_weight[V,C] = d_out[*,C], ids[*]: ids"), .flops = 1, .per_input = true)
PLUMB_OP(rotary_backward, .operands = signature("d_x[B,H,T,D] = d_out[B,H,T,D], cos[1|B,T,R], sin[1|B,T,R]"), .flops = 3)
PLUMB_OP(cross_entropy, .operands = signature("loss[1]: wide = logits[N,V], labels[N]: i64"), .sums = "VN",
         .flops = 4, .per_input = true)  // as log_sum_exp
PLUMB_OP(cross_entropy_backward, .operands = signature("d_logits[N,V] = logits[N,V], labels[N]: i64, d_loss[1]: wide"),
         .sums = "V", .flops = 8)
PLUMB_OP(causal_conv1d_backward, .operands = signature("d_x[B,T,C], d_weight[C,1,W]?, d_bias[C]? = x[B,T,C], weight[C,1,W], "
                               "bias[C]?, d_out[B,T,C]"), .flops = 6, .per = "W", .more = 12)  // and silu's derivative
PLUMB_OP(sdpa_backward, .operands = signature("d_q[B,H,T,D], d_k[B,G,S,D], d_v[B,G,S,E] = d_out[B,T,H,E], q[B,H,T,D], k[B,G,S,D], "
                               "v[B,G,S,E], out[B,T,H,E], lse[B,H,T]: wide?, key_valid[B,S]: bool?, explicit_mask[*]: any?; "
                               "G divides H"),
         .flops = 10, .per = "S")  // five products, as if every key is seen
PLUMB_OP(ssd_scan_backward, .operands = signature("d_x[B,T,H,P], d_dt[B,T,H], d_b[B,T,G,N], d_c[B,T,G,N], d_a_log[H], d_d[H], "
                               "d_dt_bias[H], d_state[B,H,P,N]: wide? = d_y[B,T,H,P]: any, d_state_after[B,H,P,N]: wide?, "
                               "x[B,T,H,P], dt[B,T,H], b[B,T,G,N], c[B,T,G,N], a_log[H], d[H], dt_bias[H], "
                               "state[B,H,P,N]: wide?; G divides H"),
         .flops = 20, .per = "N")
PLUMB_OP(dequantize, .operands = signature("out[N,K] = codes[..]: codes, scales[..]: scales?, zeros[..]: codes?, "
                                 "global_scale[1]: scales?, group_index[K]: ids?"), .flops = 2, .bits = OpBits::exact)
PLUMB_OP(quantize, .operands = signature("codes[M,K]: codes, scales[P,Q]: scales, zeros[P,Q]: codes? = x[M,K]"), .flops = 3,
         .bits = OpBits::exact)  // magnitude, quotient, code
PLUMB_OP(quantised_linear, .operands = signature("out[*,N] = x[*,K]: any, codes[..]: codes, scales[..]: scales?, zeros[..]: codes?, "
                                       "global_scale[1]: scales?, group_index[K]: ids?, x_scales[*,1]: scales?, bias[N]?"),
         .sums = "K", .flops = 2, .per = "K", .of_bias = 1)
PLUMB_OP(gated_activation, .operands = signature("out[*] = gate[*], up[*]"), .dtypes = kReals, .flops = 5,
         .formula = Formula::gated_silu)  // and the product
PLUMB_OP(softcap, .operands = kUnary, .dtypes = kReals, .flops = 3, .number = NumberField::cap,
         .formula = Formula::softcap)
PLUMB_OP(scaled_add, .operands = signature("out[*] = x[*], residual[*]"), .dtypes = kReals, .flops = 2,
         .formula = Formula::scaled_add)
PLUMB_OP(add_rms_norm, .operands = signature("sum[*,C], out[*,C] = x[*,C], residual[*,C], weight[C]"), .sums = "C",
         .flops = 5, .bits = OpBits::scaled)  // the residual too
PLUMB_OP(sdpa, .operands = signature("out[B,T,H,E] = q[B,H,T,D], k[B,G,S,D], v[B,G,S,E], key_valid[B,S]: bool?, "
                               "explicit_mask[*]: any?; G divides H"),
         .sums = "DSS")
PLUMB_OP(linear_cross_entropy, .operands = signature("loss[1]: wide = x[N,K], weight[V,K]: narrow, labels[N]: i64"), .sums = "KVN",
         .flops = 2, .per = "V", .per_input = true)
PLUMB_OP(linear_cross_entropy_backward, .operands = signature("d_x[N,K], d_weight[V,K]? = x[N,K], weight[V,K], labels[N]: i64, d_loss[1]: wide"),
         .sums = "KVN", .flops = 8, .per = "V")  // four products: the logits twice
PLUMB_OP(linear_backward, .operands = signature("d_x[*,K], d_weight[N,K]?, d_bias[N]? = x[*,K], weight[N,K], d_out[*,N]"),
         .sums = "N", .flops = 4, .per = "N")
PLUMB_OP(matmul_backward, .operands = signature("d_a[B,H,M,K], d_b[B,G,K,N] = a[B,H,M,K], b[B,G,K,N], d_out[B,H,M,N]; G divides H"),
         .transposed = signature("d_a[B,H,M,K], d_b[B,G,N,K] = a[B,H,M,K], b[B,G,N,K], d_out[B,H,M,N]; G divides H"),
         .sums = "N", .flops = 4, .per = "N")
PLUMB_OP(quantised_sdpa, .operands = signature("out[B,T,H,E] = q[B,H,T,D], k[B,G,S,D]: codes, v[B,G,S,E]: codes, k_scales[B,G,S,1]: wide, "
                                     "v_scales[B,G,S,1]: wide, key_valid[B,S]: bool?, explicit_mask[*]: any?; G divides H"),
         .sums = "DSS")
// clang-format on

#undef PLUMB_OP
