#include "harness/io/sha256.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    check(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }

  void update(const void* data, int64_t bytes) {
    check(EVP_DigestUpdate(context_.get(), data, static_cast<size_t>(bytes)) == 1);
  }

  std::string hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned int size = 0;
    check(EVP_DigestFinal_ex(context_.get(), digest.data(), &size) == 1 && size == 32);
    constexpr char kDigits[] = "0123456789abcdef";
    std::string hex;
    for (unsigned int i = 0; i < size; ++i)
      hex += {kDigits[digest[i] >> 4], kDigits[digest[i] & 15]};
    return hex;
  }

 private:
  static void check(bool done) { require<Error>(done, "sha256", "libcrypto reports an error"); }

  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

}  // namespace

std::string sha256_hex(const void* data, int64_t bytes) {
  Sha256 hash;
  hash.update(data, bytes);
  return hash.hex();
}

std::string sha256_hex(const File& file) {
  Sha256 hash;
  std::vector<char> chunk(static_cast<size_t>(std::min(file.size(), int64_t{1} << 20)));
  for (int64_t at = 0; at < file.size();) {
    const int64_t bytes = std::min(file.size() - at, static_cast<int64_t>(chunk.size()));
    file.read(at, chunk.data(), bytes);
    hash.update(chunk.data(), bytes);
    at += bytes;
  }
  return hash.hex();
}

}  // namespace plumb::harness
