// Any bytes as a safetensors file: read to the last tensor, or refused.
#include "harness/io/safetensors.h"
#include "kernels/error.h"
#include "tests/fuzz/input_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const plumb::testing::InputFolder folder;
  try {
    const plumb::SafetensorsFile file(
        plumb::File::open(folder.write("input.safetensors", data, size)));
    for (const auto& [name, entry] : file.entries()) file.read(name);
  } catch (const plumb::BadInput&) {
  }
  return 0;
}
