// Disks that fill up.
#include <filesystem>

#include "harness/io/file.h"
#include "harness/io/safetensors.h"
#include "tests/catch.h"
#include "tests/harness/error_text.h"
#include "tests/harness/file_size_limit.h"
#include "tests/harness/temporary_folder.h"

namespace plumb::harness {
namespace {

TEST_CASE("a disk that fills up leaves the old file and nothing else") {
  const TemporaryFolder root;
  write_bytes(root / "x", "the old text");
  const std::string text(4096, 'n');
  for (rlim_t room = 0; room < text.size(); room += 273) {
    CAPTURE(room);
    const std::string error = error_under_limit(room, [&] { write_file(root / "x", text); });
    CHECK(error.starts_with("[write] "));  // of a UsageError: another would say so first
    CHECK(contains(error, "/x: cannot be written: File too large (after " + std::to_string(room)));
    CHECK(read_bytes(root / "x") == "the old text");
    CHECK(std::distance(std::filesystem::directory_iterator(root.path()), {}) == 1);
  }
  CHECK(error_under_limit(text.size(), [&] { write_file(root / "x", text); }) ==
        "nothing was thrown");
  CHECK(read_bytes(root / "x") == text);
}

TEST_CASE("a safetensors file that does not fit leaves nothing") {
  const TemporaryFolder root;
  const Tensor tensor = host_tensor(DType::f32, {1000});
  for (int64_t i = 0; i < 1000; ++i) tensor.data<float>()[i] = static_cast<float>(i);
  for (const rlim_t room : {0, 4, 8, 60, 2000, 4000}) {
    CAPTURE(room);
    const std::string error = error_under_limit(room, [&] {
      write_safetensors(root / "x", {{"a", tensor}});
    });
    CHECK(contains(error, "File too large"));
    CHECK(std::filesystem::is_empty(root.path()));
  }
}

}  // namespace
}  // namespace plumb::harness
