// Any bytes as a safetensors file: read to the last tensor, or refused.
#include "harness/io/safetensors.h"
#include "kernels/core/error.h"
#include "tests/harness/temporary_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const plumb::harness::TemporaryFolder folder;
  plumb::harness::write_bytes(folder / "input.safetensors",
                              {reinterpret_cast<const char*>(data), size});
  try {
    const plumb::harness::SafetensorsFile file(
        plumb::harness::File::open(folder / "input.safetensors"));
    for (const auto& [name, entry] : file.entries()) file.read(name);
  } catch (const plumb::BadInput&) {
  }
  return 0;
}
