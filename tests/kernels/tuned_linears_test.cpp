// Ways of a linear: each one that a device names computes it, and what was measured is kept.
#include "kernels/ops/tuned_linears.h"

#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "kernels/core/error.h"
#include "tests/kernels/support.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

struct FolderOfTest {
  fs::path path = fs::temp_directory_path() / text("plumb-linears-", ::getpid());
  FolderOfTest() { fs::create_directories(path); }
  FolderOfTest(const FolderOfTest&) = delete;
  FolderOfTest& operator=(const FolderOfTest&) = delete;
  ~FolderOfTest() { fs::remove_all(path); }
};

TEST_CASE("linear: right in every way that it can be tuned to") {
  const auto device = open_test_device(GENERATE(from_range(test_devices_of_products())));
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const int64_t rows = GENERATE(4, 7, 64), outputs = 48, inner = 96;
  const bool with_bias = GENERATE(false, true);
  TunedLinears* tuned = device->ops().tuned_linears();
  if (!tuned) {
    SUCCEED("the oracle has one way");
    return;
  }
  const Values a = random_values(dtype, rows * inner, 1);
  const Values b = random_values(dtype, outputs * inner, 2), c = random_values(dtype, outputs, 3);
  const Guarded x = holding(*device, dtype, {rows, inner}, a);
  const Guarded weight = holding(*device, dtype, {outputs, inner}, b);
  const Guarded bias = holding(*device, dtype, {outputs}, c);
  Guarded out(*device, dtype, {rows, outputs});
  const Tensor given = with_bias ? bias.tensor() : Tensor();
  const LinearShape shape = linear_shape(out, weight, given);
  REQUIRE(shape == LinearShape{dtype, rows, outputs, inner, with_bias});
  Values exact, bound;
  for (int64_t i = 0; i < rows * outputs; ++i) {
    double sum = 0, magnitudes = 0;
    const auto add = [&](double term) {
      sum += term;
      magnitudes += std::fabs(term);
    };
    for (int64_t k = 0; k < inner; ++k) {
      add(a[static_cast<size_t>(i / outputs * inner + k)] *
          b[static_cast<size_t>(i % outputs * inner + k)]);
    }
    if (with_bias) add(c[static_cast<size_t>(i % outputs)]);
    exact.push_back(sum);
    bound.push_back(rounding_unit(dtype) * std::fabs(sum) + smallest_step(dtype) +
                    static_cast<double>(inner + 2) * kU32 * magnitudes);
  }
  const std::vector<LinearWay> ways = device->ops().linear_ways(shape);
  REQUIRE(ways.size() > 0);
  std::set<std::string> ran;
  for (const LinearWay& way : ways) {
    CAPTURE(way.kernel, way.choice);
    tuned->set(shape, way);
    const Values y = run(*device, {&out}, [&] { device->ops().linear(out, x, weight, given); })[0];
    require_close(y, exact, bound);
    CHECK(device->ops().choice().chosen().kernel == way.kernel);
  }
  tuned->set(shape, LinearWay{"no such kernel", "1:2"});  // as an older file may say
  require_close(run(*device, {&out}, [&] { device->ops().linear(out, x, weight, given); })[0],
                exact, bound);
}

TEST_CASE("linear: what was measured is read again, on that device alone") {
  const FolderOfTest folder;
  const std::string file = folder.path / "linears.txt";
  const LinearShape first{DType::bf16, 16, 4096, 11008, false}, second{DType::f32, 1, 2, 3, true};
  TunedLinears written;
  written.set(first, LinearWay{"cublaslt", "130101:1:ff"});
  written.set(second, LinearWay{"onednn"});
  written.write(file, "a GPU, 1 thread");
  TunedLinears read, other, none;
  read.read(file, "a GPU, 1 thread");
  other.read(file, "a GPU, 2 threads");
  none.read(folder.path / "missing", "a GPU, 1 thread");
  CHECK(read.all() == written.all());
  REQUIRE(read.find(first));
  CHECK(*read.find(first) == LinearWay{"cublaslt", "130101:1:ff"});
  CHECK(read.find({DType::bf16, 17, 4096, 11008, false}) == nullptr);
  CHECK(other.size() == 0);
  CHECK(none.size() == 0);
}

TEST_CASE("linear: a broken file of measurements is named, with the line") {
  const FolderOfTest folder;
  const std::string file = folder.path / "linears.txt", device = "cpu";
  TunedLinears tuned;
  tuned.write(file, device);
  SECTION("a line") {
    std::ofstream(file, std::ios::app) << "bf16 16 many 11008 - onednn\n";
    REQUIRE_THROWS_WITH(tuned.read(file, device),
                        Contains("linears.txt] line 2 is \"bf16 16 many"));
  }
  SECTION("others may write it") {
    ::chmod(file.c_str(), 0666);
    REQUIRE_THROWS_WITH(tuned.read(file, device), Contains("others may write it"));
  }
}

}  // namespace
}  // namespace plumb
