// What another device says that a product is, held to the CPU. The device may be the very one that
// is judged: a kernel that writes where it must not could change what judges it.
//
// The sum of a row's elements, each times a random number, must be what the row of a gives with b
// times those numbers (Freivalds 1977): all elements are seen, in m n + n k + m k steps instead of
// m n k. Columns are scaled to one size and summed some thousands at a time, so that no error is
// lost among others. Rows that differ, and some elements of every product, are recomputed and
// compared one by one.
#pragma once

#include <string>

#include "kernels/oracle/float64_products.h"

namespace plumb {

// How far a product may be from the CPU's, relative to the sum of |a b|; 2^-53 for each term of the
// sums that are compared where that is more, as they round themselves.
inline constexpr double kProductAgreement = 1e-12;

// Whether gemm.out and gemm.magnitudes could be checked: not where so many rows have NaN or
// infinity that the CPU may as well compute them all. Throws DeviceError for an element that is
// wrong, naming the product's sizes and both values.
bool check_product(const Float64Gemm& gemm, const Float64Products& from);

}  // namespace plumb
