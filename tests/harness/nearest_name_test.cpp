#include "harness/io/nearest_name.h"

#include "harness/recording/select.h"
#include "kernels/core/error.h"
#include "tests/catch.h"
#include "tests/harness/error_text.h"

namespace plumb::harness {
namespace {

TEST_CASE("a mistyped name gets the nearest right one") {
  const std::vector<std::string> known = {"rms_norm", "layer_norm", "sdpa", "softcap", "linear"};
  for (const auto& [typed, meant] :
       std::vector<std::pair<std::string, std::string>>{{"rmsnorm", "rms_norm"},
                                                        {"RMSNorm", "rms_norm"},
                                                        {"layer-norm", "layer_norm"},
                                                        {"sdap", "sdpa"},
                                                        {"softcaps", "softcap"},
                                                        {"linera", "linear"}}) {
    INFO(typed);
    CHECK(nearest_name(typed, known) == meant);
  }
  for (const char* typed : {"conv", "", "x", "flash_attention", "completely different"}) {
    INFO(typed);
    CHECK_FALSE(nearest_name(typed, known));
  }
  CHECK(did_you_mean("rmsnorm", known) == "; did you mean rms_norm?");
  CHECK(did_you_mean("conv", known).empty());
  CHECK_FALSE(nearest_name("rms_norm", {}));
  CHECK_FALSE(nearest_name(std::string(100000, 'x'), {std::string(100000, 'y')}));
}

TEST_CASE("errors of unknown blocks and recordings suggest the nearest") {
  Selection selection;
  selection.blocks = {"rmsnorm"};
  CHECK(contains(error_text<UsageError>([&] { require_known_blocks(selection); }),
                 "[--block] unknown block \"rmsnorm\"; did you mean rms_norm?; known: "));
  selection.blocks = {"module", "sdpa"};
  require_known_blocks(selection);
  CHECK(contains(error_text<BadInput>([] { recording_folder("llama-a1/whole_f32"); }),
                 "llama-a1/whole_f32: is no folder here, nor a recording of "));
  CHECK(contains(error_text<BadInput>([] { recording_folder("llama-a1/whole_f32"); }),
                 "did you mean llama-a1/whole-f32?"));
}

TEST_CASE("a recording's name finds it wherever the program runs") {
  const std::filesystem::path folder = default_fixtures() / "llama-a1" / "decode-bf16";
  CHECK(recording_folder("llama-a1/decode-bf16") == folder);
  CHECK(recording_folder(folder.string()) == folder);
  CHECK(open_recording("llama-a1/decode-bf16").name() == "llama-a1/decode-bf16");
  Selection selection;
  selection.fixtures = {"llama-a1"};  // a folder of recordings
  CHECK(selected_recordings(selection).size() > 1);
  CHECK_THROWS_AS(recording_folder("/llama-a1/decode-bf16"), BadInput);
  CHECK_THROWS_AS(recording_folder(""), BadInput);
}

TEST_CASE("a selection that is empty says what there is") {
  const Recording recording = open_recording("llama-a1/whole-f32");
  Selection selection;
  selection.checkpoint = "model.norn#0";
  const std::string words = error_text<UsageError>(
      [&] { require_some(selected_checkpoints(selection, recording), selection, recording); });
  CHECK(contains(words, "did you mean model.norm#0?"));
  CHECK(contains(words, "its blocks: embedding, "));
}

}  // namespace
}  // namespace plumb::harness
