// SHA-256 (FIPS 180-4), from OpenSSL's libcrypto. Digests are 64 lower-case hexadecimal digits.
#pragma once

#include <cstdint>
#include <string>

#include "harness/io/file.h"

namespace plumb::harness {

// Both throw Error where libcrypto refuses.
std::string sha256_hex(const void* data, int64_t bytes);
std::string sha256_hex(const File& file);  // as long as it was when it was opened

}  // namespace plumb::harness
