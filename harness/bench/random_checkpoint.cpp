#include "harness/bench/random_checkpoint.h"

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>

#include "harness/io/generator.h"
#include "harness/io/safetensors.h"
#include "harness/model/model_folder.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPoolElements = 1048573;  // elements; a prime: no row length divides it

fs::path make_folder() {
  std::string name = (fs::temp_directory_path() / "plumb-model-XXXXXX").string();
  require<Error>(::mkdtemp(name.data()) != nullptr, "bench", "no folder ", name,
                 " can be made for the weights; set TMPDIR to a folder that can be written to");
  return name;
}

// Of a weight by its name and shape: sigma 1.155 2^exponent, and what is added.
Generator distribution(const std::string& name, const Shape& shape, bool gemma) {
  constexpr int kMatrix = -16, kVector = -17;  // times 2^15: 1/2, 1/4
  Generator out;
  if (shape.rank() > 1) {
    const double inputs = static_cast<double>(shape.numel() / shape[0]);
    out.exponent = kMatrix - static_cast<int>(std::lround(std::log2(std::sqrt(inputs))));
    return out;
  }
  out.exponent = kVector;
  const bool one = name.ends_with("norm.weight") || name.ends_with(".D");
  if (one && !gemma) out.offset = 1;
  return out;
}

// `n` elements of the pool from `start` on, again and again.
void write_repeated(std::ofstream& file, const Tensor& pool, int64_t start, int64_t n) {
  const int64_t size = size_of(pool.dtype());
  for (int64_t done = 0, at = start % kPoolElements; done < n; at = 0) {
    const int64_t more = std::min(kPoolElements - at, n - done);
    file.write(pool.data<char>() + at * size, more * size);
    done += more;
  }
}

void write_weights(const fs::path& path, const std::map<std::string, Shape>& weights, DType dtype,
                   bool gemma) {
  std::ofstream file(path, std::ios::binary);
  std::vector<SafetensorsItem> items;
  for (const auto& [name, shape] : weights) items.push_back({name, dtype, shape});
  file << safetensors_header(items);
  std::map<std::pair<int, float>, Tensor> pools;
  int64_t start = 0;
  for (const auto& [name, shape] : weights) {
    const Generator generator = distribution(name, shape, gemma);
    Tensor& pool = pools[{generator.exponent, generator.offset}];
    if (!pool.defined()) pool = generate(generator, dtype, {kPoolElements});
    write_repeated(file, pool, start += 7919, shape.numel());
  }
  file.close();
  require(file.good(), "bench", path.string(),
          ": could not be written; is the disk full? TMPDIR names another one");
}

}  // namespace

RandomCheckpoint::RandomCheckpoint(const std::string& config, DType dtype)
    : folder_(make_folder()) {
  try {
    const fs::path file = folder_ / "config.json";
    std::ofstream(file) << config;
    const blocks::Config read(read_model_config(file));
    write_weights(folder_ / "model.safetensors", blocks::expected_weights(read).asked(), dtype,
                  read.string_or("model_type", "") == "gemma2");
  } catch (...) {
    remove();
    throw;
  }
}

void RandomCheckpoint::remove() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

}  // namespace plumb::harness
