// Any text as lines of results: counted, or refused.
#include "harness/report/results_summary.h"
#include "kernels/core/error.h"
#include "tests/harness/temporary_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const plumb::harness::TemporaryFolder folder;
  plumb::harness::write_bytes(folder / "results.jsonl",
                              {reinterpret_cast<const char*>(data), size});
  try {
    plumb::harness::summarised(folder / "results.jsonl");
  } catch (const plumb::BadInput&) {
  }
  return 0;
}
