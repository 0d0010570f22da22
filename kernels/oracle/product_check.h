// What another device says that a product is, held to the CPU. The device may be the very one that
// is judged: a kernel that writes where it must not could change what judges it.
//
// The sum of a row's elements, each times a random number, has to be what the row of a gives with b
// times those numbers: all elements are seen, in m n + n k + m k steps instead of m n k. A row that
// is not so is computed anew and compared element by element, and so are some elements of any
// product, which have to have the promised bits.
#pragma once

#include <string>

#include "kernels/oracle/float64_products.h"

namespace plumb {

// Of the sum of |a b|: how far a product may be from the CPU's.
inline constexpr double kProductAgreement = 1e-12;

// Whether gemm.out and gemm.magnitudes could be checked: not where so many rows have NaN or
// infinity that the CPU may as well compute them all. Throws DeviceError for an element that is
// wrong, naming the product's sizes and both values.
bool check_product(const Float64Gemm& gemm, const Float64Products& from);

}  // namespace plumb
