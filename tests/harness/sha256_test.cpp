#include "harness/io/sha256.h"

#include <string>

#include "tests/catch.h"
#include "tests/harness/temporary_folder.h"

namespace plumb::harness {
namespace {

std::string hash(const std::string& text) {
  return sha256_hex(text.data(), static_cast<int64_t>(text.size()));
}

// The examples of FIPS 180-4 and NIST's CAVP.
TEST_CASE("sha256 gives the standard's digests") {
  CHECK(hash("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hash("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hash(std::string(1'000'000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("sha256 of a file is that of its bytes, over any number of chunks") {
  const TemporaryFolder folder;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{1} << 20, (size_t{5} << 19) + 3}) {
    std::string bytes(size, '\0');
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7 + i / 253);
    write_bytes(folder / "x", bytes);
    CHECK(sha256_hex(File::open(folder / "x")) == hash(bytes));
  }
}

}  // namespace
}  // namespace plumb::harness
