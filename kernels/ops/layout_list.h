// Every layout of quantised weights once: its identifier, its name and its row
// (kernels/ops/layouts.h). python_inspector/quantised/rows.py reads them, too, a field a `.name =
// value`; tests/python/test_quantised_ops.py holds devices to what it makes of them bit for bit.
// New ones come last: plugins are given their numbers.
//
// No include guard: it is read several times.

// clang-format off
PLUMB_LAYOUT(int8, "int8", .codes = CodeType::i8)
PLUMB_LAYOUT(int8_zero, "int8-zero", .codes = CodeType::i8, .zeros = ZeroType::plain)
PLUMB_LAYOUT(fp8, "fp8", .codes = CodeType::f8, .of_several_rows = true)  // per tensor, channel, 128 x 128
PLUMB_LAYOUT(mxfp8, "mxfp8", .codes = CodeType::f8, .exponents = true)
PLUMB_LAYOUT(mxfp4, "mxfp4", .codes = CodeType::bytes, .grid = CodeGrid::e2m1, .exponents = true)
PLUMB_LAYOUT(nvfp4, "nvfp4", .codes = CodeType::bytes, .grid = CodeGrid::e2m1, .has_global_scale = true)
PLUMB_LAYOUT(nf4, "nf4", .codes = CodeType::bytes, .places = kHighFirst, .grid = CodeGrid::nf4, .flat = 64)
PLUMB_LAYOUT(int4, "int4", .codes = CodeType::words, .offset = 8)  // compressed-tensors
PLUMB_LAYOUT(int4_zero, "int4-zero", .codes = CodeType::words, .zeros = ZeroType::words, .zeros_axis = 0)
PLUMB_LAYOUT(gptq, "gptq", .codes = CodeType::words, .packed_axis = 0, .by_input = true, .zeros = ZeroType::words, .zeros_axis = 1,
             .zeros_less_one = true, .has_group_index = true)
PLUMB_LAYOUT(gptq_v2, "gptq-v2", .codes = CodeType::words, .packed_axis = 0, .by_input = true, .zeros = ZeroType::words, .zeros_axis = 1,
             .has_group_index = true)
PLUMB_LAYOUT(awq, "awq", .codes = CodeType::words, .places = kInterleaved, .by_input = true, .zeros = ZeroType::words, .zeros_axis = 1)
// Blocks of ggml (ggml/src/ggml-common.h): planes are {first byte, bits, run, place in the code}.
PLUMB_LAYOUT(q4_0, "q4_0", .offset = 8, .block = {.bytes = 18, .codes = 32, .group = 32, .low = {2, 4, 16}})
PLUMB_LAYOUT(q4_1, "q4_1", .block = {.bytes = 20, .codes = 32, .group = 32, .low = {4, 4, 16}, .least = 2})
PLUMB_LAYOUT(q5_0, "q5_0", .offset = 16, .block = {.bytes = 22, .codes = 32, .group = 32, .low = {6, 4, 16}, .high = {2, 1, 1, 4}})
PLUMB_LAYOUT(q5_1, "q5_1", .block = {.bytes = 24, .codes = 32, .group = 32, .low = {8, 4, 16}, .high = {4, 1, 1, 4}, .least = 2})
PLUMB_LAYOUT(q8_0, "q8_0", .block = {.bytes = 34, .codes = 32, .group = 32, .low = {2, 8, 32}})
PLUMB_LAYOUT(q2_k, "q2_k", .block = {.bytes = 84, .codes = 256, .group = 16, .low = {16, 2, 32}, .scale = 80, .least = 82,
                                     .parts = BlockScales::nibbles, .parts_at = 0})
PLUMB_LAYOUT(q3_k, "q3_k", .offset = 4, .block = {.bytes = 110, .codes = 256, .group = 16, .low = {32, 2, 32}, .high = {0, 1, 32, 2},
                                                  .scale = 108, .parts = BlockScales::six_bits, .parts_at = 96})
PLUMB_LAYOUT(q4_k, "q4_k", .block = {.bytes = 144, .codes = 256, .group = 32, .low = {16, 4, 32}, .least = 2,
                                     .parts = BlockScales::six_bits_and_least, .parts_at = 4})
PLUMB_LAYOUT(q5_k, "q5_k", .block = {.bytes = 176, .codes = 256, .group = 32, .low = {48, 4, 32}, .high = {16, 1, 32, 4}, .least = 2,
                                     .parts = BlockScales::six_bits_and_least, .parts_at = 4})
PLUMB_LAYOUT(q6_k, "q6_k", .offset = 32, .block = {.bytes = 210, .codes = 256, .group = 16, .low = {0, 4, 64}, .high = {128, 2, 32, 4},
                                                   .scale = 208, .parts = BlockScales::bytes, .parts_at = 192})
// clang-format on

#undef PLUMB_LAYOUT
