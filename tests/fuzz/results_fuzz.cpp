// Any text as lines of results: counted, or refused.
#include "harness/report/results_summary.h"
#include "kernels/error.h"
#include "tests/fuzz/input_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const plumb::testing::InputFolder folder;
  try {
    plumb::summarised(folder.write("results.jsonl", data, size));
  } catch (const plumb::BadInput&) {
  }
  return 0;
}
