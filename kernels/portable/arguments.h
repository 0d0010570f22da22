// The arguments of each kernel, read by the host too. Sizes are multiples of 8 and members aligned
// to their size, so that C++, OpenCL C and GLSL's scalar layout agree. Addresses are u64, 0 for an
// operand that is not there; strides are in elements, 0 where an operand is repeated. `storage`s
// are numbers of STORAGE, or 3, bool.
STRUCT(Rows) {
  i64 stride0, stride1, stride2;
  i32 inner, innermost;
}
END(Rows);
STRUCT(ProbeArguments) {
  u64 to, x, y;
  i32 count, which;
}
END(ProbeArguments);

// Axes from the innermost one on.
STRUCT(MapArguments) {
  u64 to, a, b, c;
  i64 to_stride[8], a_stride[8], b_stride[8], c_stride[8];
  i64 total;
  i32 extent[8];
  i32 axes, formula, to_storage, a_storage, b_storage, c_storage;
  float number, shift;
}
END(MapArguments);
STRUCT(ReduceArguments) {  // kept: axes of the results; reduced: those of a result's elements
  u64 to, x;
  i64 to_stride[8], kept_stride[8], reduced_stride[8];
  i64 count;
  i32 kept_extent[8], reduced_extent[8];
  i32 kept_axes, reduced_axes, reduction, gives_index, to_storage, x_storage;
}
END(ReduceArguments);
STRUCT(MoveArguments) {  // flags: an element is moved where its flag is `moves`
  u64 to, x, ids, flags, error;
  i64 to_stride[8], x_stride[8], first[8], x_extent[8], id_stride[8], flag_stride[8];
  i64 total, outside;  // the bits of an element that is not moved
  i32 extent[8], step[8];
  i32 axes, bytes, wraps, id_axis, id_dtype, id_for_each, op, moves;  // wraps: a bit of each axis
}
END(MoveArguments);
STRUCT(UniformArguments) {  // bits: of a number's significand
  u64 to;
  i64 to_stride[8];
  i64 total, seed, offset;
  i32 extent[8];
  i32 axes, bits;
}
END(UniformArguments);
STRUCT(CastArguments) {  // dtypes: in the order of DType
  u64 to, x;
  i64 to_stride[8], x_stride[8];
  i64 total;
  i32 extent[8];
  i32 axes, to_dtype, from_dtype, unused;
}
END(CastArguments);

STRUCT(NormArguments) {
  u64 to, x, weight, bias, gate;
  Rows out_rows, x_rows, gate_rows;
  i32 columns, groups, round_before, gate_storage, weight_storage, unused;
  float eps, weight_offset;
}
END(NormArguments);
STRUCT(GroupNormArguments) {  // a group of channels is dense
  u64 to, x, weight, bias;
  i64 count;                    // elements of a group
  i32 groups, channels, inner;  // channels of a group, elements of a channel
  float eps;
}
END(GroupNormArguments);
STRUCT(NormBackwardArguments) {  // stats: r and mean of each row, f32
  u64 to, x, weight, d_out, d_weight, d_bias, stats;
  Rows to_rows, x_rows, d_rows;
  i32 rows, columns, centred, round_before;
  float eps, weight_offset;
}
END(NormBackwardArguments);
STRUCT(CrossEntropyArguments) {  // loss: its result, or its gradient where there is d_logits
  u64 loss, d_logits, logits, labels, error;
  Rows logits_rows, d_rows;
  i64 ignored;
  i32 rows, columns, loss_storage, op;
}
END(CrossEntropyArguments);
STRUCT(SoftmaxArguments) {  // backward: d_x of y, in x, and d_out
  u64 to, x, d_out;
  Rows out_rows, x_rows, d_rows;
  i32 columns, unused;
}
END(SoftmaxArguments);
STRUCT(EmbeddingArguments) {
  u64 to, ids, weight, error;
  Rows out_rows, id_rows;
  i64 weight_row, vocabulary, padding;  // backward: to is d_out; padding has no gradient
  i32 columns, ids_width, id_dtype, op, count;
  float scale;
}
END(EmbeddingArguments);
STRUCT(RotaryArguments) {
  u64 to, x, cos, sin;
  i64 out_b, out_h, out_t, x_b, x_h, x_t, cos_b, cos_t, sin_b, sin_t, total;
  i32 heads, tokens, pairs, columns, interleaved, inverse;
}
END(RotaryArguments);
STRUCT(RotaryTableArguments) {
  u64 cos, sin, positions, inv_freq;
  Rows cos_rows, sin_rows;
  i64 position_b;
  i32 tokens, half_columns;
  float scaling, unused;
}
END(RotaryTableArguments);

STRUCT(ProductArguments) {  // out = R(f(alpha a b + beta c + bias)), f none where it is negative
  u64 to, a, b, c, bias;
  i64 a_batch, a_head, a_row, a_inner, b_batch, b_head, b_inner, b_column;
  i64 out_batch, out_head, out_row, c_batch, c_head, c_row;
  i32 rows, columns, inner, heads, group, function;
  float alpha, beta;
}
END(ProductArguments);
STRUCT(SdpaArguments) {
  u64 to, q, k, v, key_valid, explicit_bool, additive;
  i64 q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, out_b, out_t, out_h, valid_b, mask_b, mask_h,
      mask_t;
  i64 query_offset, key_offset, window;  // window 0: none
  i32 heads, group, queries, keys, dim, v_dim, causal, uniform_rows, mask_storage, unused;
  float scale, softcap;  // softcap 0: none
}
END(SdpaArguments);
STRUCT(MaskArguments) {
  u64 to, key_valid, explicit_bool;
  i64 out_b, out_h, out_t, valid_b, mask_b, mask_h, mask_t, query_offset, key_offset, window;
  i32 heads, queries, keys, causal, to_storage;
  float excluded;
}
END(MaskArguments);

STRUCT(ConvArguments) {
  u64 to, x, weight, bias;
  i64 out_b, out_c, out_h, x_b, x_c, x_h, out_weight, in_weight, row_weight, total;
  i32 stride[2], padding[2], dilation[2], x_extent[2], out_extent[2], taps[2];
  i32 channels, inputs, outputs, transposed;  // inputs, outputs: channels of a group
}
END(ConvArguments);
STRUCT(PoolArguments) {
  u64 to, x;
  i64 out_b, out_c, out_h, x_b, x_c, x_h, total;
  i32 stride[2], padding[2], kernel_extent[2], x_extent[2], out_extent[2];
  i32 channels, kind;  // 0 max, 1 mean, 2 mean with the padding, 3 nearest
  float scale[2];
}
END(PoolArguments);
STRUCT(CumsumArguments) {
  u64 to, x;
  i64 to_stride[8], x_stride[8];
  i64 to_step, x_step, total, count;
  i32 extent[8];
  i32 axes, whole;  // whole: dtype of whole numbers, whose sums are i64; negative: floats
}
END(CumsumArguments);
STRUCT(PositionArguments) {
  u64 to, valid;
  i64 out_b, valid_b, offset;
  i32 batch, tokens;
}
END(PositionArguments);
STRUCT(TopKArguments) {
  u64 values, ids, x;
  Rows value_rows, id_rows, x_rows;
  i32 columns, count, largest, unused;
}
END(TopKArguments);
STRUCT(IndexAddArguments) {
  u64 to, x, ids, source, error;
  i64 to_stride[8], x_stride[8], source_stride[8], id_stride[8];
  i64 total, count, source_step, id_step;
  i32 extent[8];
  i32 axes, axis, id_dtype, id_for_each, op, whole;  // along the axis: count elements of source
  i32 source_extent[8];
}
END(IndexAddArguments);

STRUCT(ConvStateArguments) {
  u64 to, after, x, weight, bias, before;
  i64 out_b, out_t, x_b, x_t, before_b, before_c, after_b, after_c, weight_c, total;
  i32 tokens, channels, width, function;
}
END(ConvStateArguments);
STRUCT(SsdArguments) {  // state: dense, f32, that of the start and of the end
  u64 y, state, x, dt, b, c, a_log, d, dt_bias;
  i64 y_b, y_t, y_h, x_b, x_t, x_h, dt_b, dt_t, b_b, b_t, b_g, c_b, c_t, c_g;
  i32 tokens, heads, head_dim, group, columns, step, clamps, y_storage;
  float dt_min, dt_max;
}
END(SsdArguments);
