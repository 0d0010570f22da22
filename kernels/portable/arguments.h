// The arguments of each kernel, read by the host too. Sizes are multiples of 8 and members aligned
// to their size, so that C++, OpenCL C and GLSL's scalar layout agree. Addresses are u64, 0 for an
// operand that is not there; strides are in elements.
STRUCT(Rows) { i64 stride0, stride1, stride2; i32 inner, innermost; } END(Rows);
STRUCT(ProbeArguments) { u64 to, x, y; i32 count, which; } END(ProbeArguments);
