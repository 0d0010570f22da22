#include "harness/bench/shapes.h"

#include "kernels/error.h"

namespace plumb {

const std::vector<BenchShape>& bench_shapes() {
  static const std::vector<BenchShape> shapes = {
      {"llama3-8b", 4096, 32, 8, 128, 14336, 128256},
      {"llama3.2-1b", 2048, 32, 8, 64, 8192, 128256},
      {"gemma2-2b", 2304, 8, 4, 256, 9216, 256000, Activation::gelu_tanh, true, 50.0, 30.0, 4096},
      {"zamba2-1.2b",
       2048,
       32,
       32,
       128,
       8192,
       32000,
       Activation::gelu,
       false,
       {},
       {},
       {},
       BenchMamba{64, 64, 1, 128, 256}},
      {"tiny", 64, 4, 2, 16, 128, 512},  // for a first look on a slow device
      {"tiny-gemma2", 64, 4, 2, 16, 128, 512, Activation::gelu_tanh, true, 50.0, 30.0, 8},
      {"tiny-zamba2",
       64,
       4,
       2,
       16,
       128,
       512,
       Activation::gelu,
       false,
       {},
       {},
       {},
       BenchMamba{4, 32, 2, 16, 16}},
  };
  return shapes;
}

const BenchShape& find_bench_shape(const std::string& name) {
  std::string known;
  for (const BenchShape& shape : bench_shapes()) {
    if (shape.name == name) return shape;
    known += text(known.empty() ? "" : ", ", shape.name);
  }
  throw UsageError(text("[--shape] unknown shape \"", name, "\"; known: ", known));
}

}  // namespace plumb
