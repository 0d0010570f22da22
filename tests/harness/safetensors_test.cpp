#include "harness/io/safetensors.h"

#include <unistd.h>

#include <cstring>
#include <numeric>

#include "tests/catch.h"
#include "tests/harness/error_text.h"
#include "tests/harness/safetensors_bytes.h"
#include "tests/harness/temporary_folder.h"

namespace plumb::harness {
namespace {

SafetensorsFile open(const std::filesystem::path& path) {
  return SafetensorsFile(File::open(path));
}

std::string bytes_in(const Tensor& tensor) {
  return {static_cast<const char*>(tensor.raw()), static_cast<size_t>(tensor.bytes())};
}

TEST_CASE("tensors of every dtype are read, at any offset, into aligned memory") {
  const TemporaryFolder folder;
  std::vector<RawTensor> tensors;
  int n = 0;
  for (const char* dtype : {"BOOL", "F64", "U8", "F32", "I8", "F16", "F8_E4M3", "BF16", "F8_E5M2",
                            "I32", "U32", "U8", "I64"}) {
    const std::map<std::string, size_t> kSizes = {{"F64", 8}, {"I64", 8}, {"F32", 4}, {"I32", 4},
                                                  {"U32", 4}, {"F16", 2}, {"BF16", 2}};
    const size_t size = kSizes.count(dtype) ? kSizes.at(dtype) : 1;
    std::string bytes(3 * size, '\0');
    std::iota(bytes.begin(), bytes.end(), static_cast<char>(17 * n));
    tensors.push_back({text('x', n++), dtype, {3}, bytes});
  }
  write_bytes(folder / "x", safetensors_file(tensors));
  const SafetensorsFile file = open(folder / "x");
  REQUIRE(file.entries().size() == tensors.size());
  for (const RawTensor& raw : tensors) {
    CAPTURE(raw.name, raw.dtype);
    const Tensor tensor = file.read(raw.name);
    CHECK(safetensors_name(tensor.dtype()) == raw.dtype);
    CHECK(tensor.shape() == Shape{3});
    CHECK(bytes_in(tensor) == raw.bytes);
    CHECK(reinterpret_cast<uintptr_t>(tensor.raw()) % 64 == 0);
  }
}

TEST_CASE("scalars, empty tensors, padding and metadata are read") {
  const TemporaryFolder folder;
  std::string header =
      R"({"__metadata__":{"format":"pt"},"e":{"dtype":"F32","shape":[2,0],"data_offsets":[0,0]},)"
      R"("s":{"data_offsets":[0,4],"shape":[],"dtype":"F32"},)"
      R"("z":{"dtype":"I64","shape":[0],"data_offsets":[4,4]}}   )";
  write_bytes(folder / "x", safetensors_file(header, bytes_of(std::vector<float>{2.5f})));
  const SafetensorsFile file = open(folder / "x");
  CHECK(file.metadata().at("format") == "pt");
  CHECK(file.entries().size() == 3);
  CHECK(file.read("s").rank() == 0);
  CHECK(*file.read("s").data<float>() == 2.5f);
  CHECK(file.read("e").shape() == Shape{2, 0});
  CHECK(file.read("z").numel() == 0);
  CHECK(contains(error_text([&] { file.read("\x1b[2J"); }), R"(no tensor "\x1b[2J")"));
  write_bytes(folder / "y", safetensors_file("{}", ""));
  CHECK(open(folder / "y").entries().empty());
  // As the safetensors library reads it: no metadata.
  write_bytes(folder / "n", safetensors_file(R"({"__metadata__":null})", ""));
  CHECK(open(folder / "n").metadata().empty());
}

TEST_CASE("a file that is cut while it is open is refused at the read") {
  const TemporaryFolder folder;
  write_bytes(folder / "x", safetensors_file({{"a", "U8", {100}, std::string(100, 'x')}}));
  const SafetensorsFile file = open(folder / "x");
  REQUIRE(::truncate((folder / "x").c_str(), 90) == 0);
  CHECK(contains(error_text([&] { file.read("a"); }), "ends at byte 90"));
}

TEST_CASE("what is written is read again") {
  const TemporaryFolder folder;
  const Tensor small = host_tensor(DType::boolean, {3});
  const Tensor large = host_tensor(DType::f64, {2, 3});
  const Tensor cube = host_tensor(DType::bf16, {2, 3, 5});
  const Tensor empty = host_tensor(DType::i32, {0, 4});
  std::memset(small.raw(), 1, 3);
  for (int i = 0; i < 6; ++i) large.data<double>()[i] = i / 3.0;
  for (int i = 0; i < 30; ++i) cube.data<uint16_t>()[i] = static_cast<uint16_t>(i);
  write_safetensors(folder / "x", {{"small", small},
                                   {"a \"quoted\\ é", large},
                                   {"strided", cube.transpose(0, 1)},
                                   {"sliced", cube.slice(1, 1, 3)},
                                   {"expanded", large.slice(0, 1, 2).expand(0, 3)},
                                   {"empty", empty}});
  const SafetensorsFile file = open(folder / "x");
  CHECK(bytes_in(file.read("small")) == bytes_in(small));
  CHECK(bytes_in(file.read("a \"quoted\\ é")) == bytes_in(large));
  CHECK(file.read("empty").shape() == Shape{0, 4});
  const Tensor strided = file.read("strided");
  const Tensor sliced = file.read("sliced");
  REQUIRE(strided.shape() == Shape{3, 2, 5});
  REQUIRE(sliced.shape() == Shape{2, 2, 5});
  for (int i = 0; i < 30; ++i) {
    const int row = i / 10;
    const int block = i / 5 % 2;
    CHECK(strided.data<uint16_t>()[i] == block * 15 + row * 5 + i % 5);
  }
  for (int i = 0; i < 20; ++i) CHECK(sliced.data<uint16_t>()[i] == i / 10 * 15 + 5 + i % 10);
  const Tensor expanded = file.read("expanded");
  for (int i = 0; i < 9; ++i) CHECK(expanded.data<double>()[i] == (3 + i % 3) / 3.0);
  for (const auto& [name, entry] : file.entries()) {
    CAPTURE(name);
    CHECK(entry.begin % size_of(entry.dtype) == 0);
  }
  CHECK(read_bytes(folder / "x")[0] % 8 == 0);  // so the payload is aligned too
}

TEST_CASE("names that no reader would take are not written") {
  const TemporaryFolder folder;
  const Tensor t = host_tensor(DType::u8, {1});
  for (const std::string& name : {std::string(), std::string("__metadata__"), std::string("a\nb"),
                                  std::string("\xff"), std::string(1025, 'x')}) {
    CAPTURE(name);
    CHECK(contains(error_text<UsageError>([&] {
                     write_safetensors(folder / "x", {{name, t}});
                   }),
                   "the name"));
  }
  CHECK(contains(error_text<UsageError>([&] {
                   write_safetensors(folder / "x", {{"a", t}, {"a", t}});
                 }),
                 "appears twice"));
  CHECK(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace plumb::harness
