// Any text as recording.json with real tensors: checked and read to the last tensor, or refused.
#include "harness/recording/recording.h"
#include "kernels/core/error.h"
#include "tests/harness/temporary_folder.h"

namespace {

// The tensor files are those of this recording, so that a changed text still finds them.
constexpr const char* kRecording = "fixtures/llama-a1/whole-f16";

void link_tensors(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(kRecording)) {
    if (entry.path().extension() == ".safetensors") {
      std::filesystem::copy_file(entry.path(), folder / entry.path().filename());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const plumb::harness::TemporaryFolder folder;
  static const bool linked = (link_tensors(folder.path()), true);
  (void)linked;
  plumb::harness::write_bytes(folder / "recording.json",
                              {reinterpret_cast<const char*>(data), size});
  try {
    const plumb::harness::Recording recording = plumb::harness::Recording::open(folder.path());
    for (const plumb::harness::Checkpoint& checkpoint : recording.checkpoints()) {
      for (const auto& [name, input] : checkpoint.inputs) recording.read(input.tensor);
    }
  } catch (const plumb::BadInput&) {
  } catch (const plumb::Unsupported&) {
  }
  return 0;
}
