// Decoding with recorded launches: the same bits as queueing every launch, and nothing but kernels.
#include <algorithm>
#include <cstring>
#include <set>

#include "blocks/models/decode_step.h"
#include "harness/model/inference.h"
#include "harness/model/sampling.h"
#include "kernels/core/error.h"
#include "kernels/ops/argmax.h"
#include "kernels/ops/ops.h"
#include "tests/gpu/gpu_devices.h"

namespace plumb {
namespace {

using Catch::Contains;

// With both wave widths of the emulated one.
std::vector<std::string> all_widths() {
  std::vector<std::string> out = gpu_devices();
  if (!out.empty() && is_emulated(out.back())) out.emplace_back("emu:64");
  return out;
}

std::string bytes_of(Device& device, const Tensor& t) {
  std::string out(static_cast<size_t>(t.bytes()), '\0');
  device.download(out.data(), t);
  device.synchronize();
  return out;
}

// A sequence that is decoded in one of the two ways.
class Decoding {
 public:
  Decoding(const blocks::CausalLm& model, Device& device, int64_t batch, int64_t room, bool replay)
      : model_(model),
        device_(device),
        sequence_(model.begin(device, batch, room)),
        ids_(device.allocate(DType::i64, {batch, 1})),
        logits_(device.allocate(model.dtype(), {batch, 1, model.vocabulary()})),
        step_(model, device, sequence_, ids_, logits_, replay) {}

  std::string prompt(int64_t tokens, int64_t first_id) {
    const int64_t batch = ids_.dim(0);
    const Tensor host = host_tensor(DType::i64, {batch, tokens});
    const Tensor ids = device_.allocate(DType::i64, host.shape());
    for (int64_t i = 0; i < host.numel(); ++i) {
      host.data<int64_t>()[i] = (first_id + 7 * i) % model_.vocabulary();
    }
    device_.upload(ids, host.raw());
    blocks::Context ctx{device_.ops()};
    model_.forward(ctx, logits_, ids, sequence_);
    return bytes_of(device_, logits_);
  }

  std::string step(int64_t first_id) {
    const Tensor host = host_tensor(DType::i64, ids_.shape());
    for (int64_t b = 0; b < host.numel(); ++b) {
      host.data<int64_t>()[b] = (first_id + 5 * b) % model_.vocabulary();
    }
    device_.upload(ids_, host.raw());
    step_();
    return bytes_of(device_, logits_);
  }

  blocks::Sequence& sequence() { return sequence_; }
  blocks::DecodeStep& decode() { return step_; }

 private:
  const blocks::CausalLm& model_;
  Device& device_;
  blocks::Sequence sequence_;
  Tensor ids_, logits_;
  blocks::DecodeStep step_;
};

// A prompt of 9 tokens, and in the middle of the steps one of `between`.
void compare(Device& device, const char* tiny, DType dtype, int64_t batch, int steps,
             int64_t between) {
  const harness::ModelFolder folder(harness::find_model(tiny));
  const auto model = folder.load(device, dtype);
  const int64_t room = 9 + steps + between + 14;
  Decoding replayed(*model, device, batch, room, true), eager(*model, device, batch, room, false);
  REQUIRE(replayed.decode().why_eager().empty());
  REQUIRE(replayed.prompt(9, 3) == eager.prompt(9, 3));
  for (int step = 0; step < steps; ++step) {
    INFO("step " << step);
    if (step == steps / 2) REQUIRE(replayed.prompt(between, step) == eager.prompt(between, step));
    const std::string expected = eager.step(11 * step);
    REQUIRE(expected.find_first_not_of('\0') != std::string::npos);
    REQUIRE(replayed.step(11 * step) == expected);
  }
  CHECK(replayed.sequence().length == eager.sequence().length);
}

// The steps reach beyond the 64 keys from which attention splits them. An emulated step takes as
// long as a prompt: the steps between 21 and 58 keys, which are replayed like those around them,
// are left to GPUs.
TEST_CASE("replayed steps have the bits of eager ones") {
  for (const std::string& name : all_widths()) {
    const auto device = open_device(name);
    const int steps = is_emulated(name) ? 24 : 256;
    const int64_t between = is_emulated(name) ? 37 : 7;
    for (const DType dtype : {DType::f32, DType::bf16}) {
      INFO(name << ' ' << name_of(dtype));
      compare(*device, "tiny:llama-a1", dtype, 1, steps, between);
      compare(*device, "tiny:gemma2-a4", dtype, 2, steps, between);  // with a window of 5
      compare(*device, "tiny:zamba2-a7", dtype, 1, 32, 7);
    }
  }
}

TEST_CASE("a replayed step queues launches and does nothing else") {
  for (const std::string& name : gpu_devices()) {
    const auto device = open_device(name);
    for (const char* tiny : {"tiny:llama-a1", "tiny:gemma2-a4"}) {
      const harness::ModelFolder folder(harness::find_model(tiny));
      const auto model = folder.load(*device, DType::bf16);
      Decoding decoding(*model, *device, 1, 40, true);
      decoding.prompt(3, 1);
      decoding.step(2);
      const DeviceCounters before = *device->counters();
      for (int step = 0; step < 12; ++step) decoding.decode()();
      INFO(tiny << " on " << name);
      CHECK(*device->counters() - before == DeviceCounters{});
      CHECK(decoding.sequence().length == 16);
    }
  }
}

// The greedy choices behind a prompt, one forward() and one look at the logits each.
std::vector<int64_t> choices_one_by_one(const blocks::CausalLm& model, Device& device, int64_t room,
                                        int64_t prompt, int count) {
  Decoding decoding(model, device, 1, room, false);
  const auto choice = [&](const std::string& logits) {
    return argmax(model.dtype(), logits.data(), model.vocabulary());
  };
  std::vector<int64_t> out{choice(decoding.prompt(prompt, 3))};
  while (static_cast<int>(out.size()) < count) out.push_back(choice(decoding.step(out.back())));
  return out;
}

TEST_CASE("steps that choose their successors choose what the host would") {
  for (const std::string& name : all_widths()) {
    const auto device = open_device(name);
    size_t distinct = 0;
    for (const char* tiny : {"tiny:llama-a1", "tiny:gemma2-a4", "tiny:zamba2-a7"}) {
      INFO(tiny << " on " << name);
      const harness::ModelFolder folder(harness::find_model(tiny));
      const auto model = folder.load(*device, DType::f32);
      constexpr int kCount = 40;
      const auto expected = choices_one_by_one(*model, *device, 60, 9, kCount);
      distinct += std::set<int64_t>(expected.begin(), expected.end()).size();
      Decoding decoding(*model, *device, 1, 60, true);
      decoding.prompt(9, 3);
      const Tensor log = device->allocate(DType::i64, {kCount, 1});
      decoding.decode().choose_greedily(log);
      decoding.step(expected[0]);
      for (int step = 2; step < kCount; ++step) decoding.decode()();
      std::vector<int64_t> kept(kCount);
      device->download(kept.data(), log);
      device->synchronize();
      for (int step = 1; step < kCount; ++step) {
        INFO("choice " << step);
        CHECK(kept[static_cast<size_t>((9 + step) % kCount)] ==
              expected[static_cast<size_t>(step)]);
      }
    }
    CHECK(distinct > 8);  // a choice that is always the same proves little
  }
}

TEST_CASE("several greedy steps at once give what one by one gives") {
  for (const std::string& name : all_widths()) {
    const auto device = open_device(name);
    const harness::ModelFolder folder(harness::find_model("tiny:llama-a1"));
    const auto begin = [&] {
      auto out = std::make_unique<harness::Inference>(folder, *device, DType::f32, 2, 80);
      out->forward({{1, 2, 3}, {4, 5, 6}}, 1);
      return out;
    };
    const auto one = begin(), several = begin();
    std::vector<int64_t> last{7, 8};
    harness::TokenRows expected;
    for (int step = 0; step < 40; ++step) {
      expected.push_back(one->decode_greedily(last, 1)[0]);
      last = expected.back();
    }
    harness::TokenRows made;
    last = {7, 8};
    for (const int64_t count : {1, 3, 16, 16, 4}) {
      for (const auto& ids : several->decode_greedily(last, count)) made.push_back(ids);
      last = made.back();
    }
    INFO(name);
    CHECK(made == expected);
    CHECK(several->length() == 43);
    CHECK_THROWS_WITH(several->decode_greedily(last, 17), Contains("at most 16"));
    CHECK_THROWS_WITH(several->decode_greedily({1}, 1), Contains("behind 1"));
  }
}

TEST_CASE("what is computed behind a stop is not counted, whatever it is") {
  for (const std::string& name : all_widths()) {
    const auto device = open_device(name);
    const harness::ModelFolder folder(harness::find_model("tiny:llama-a1"));
    const auto generate = [&](const std::vector<int64_t>& stops) {
      harness::Inference inference(folder, *device, DType::f32, 2, 80);
      return harness::generate(inference, {{3, 4, 5}, {9, 1, 7}}, 60, {}, stops,
                               [](size_t, int64_t) {});
    };
    const harness::Generated all = generate({});
    INFO(name);
    REQUIRE(all.tokens[0].size() == 60);
    CHECK(all.decoded_per_row == 59);
    // Far behind the first steps, which are taken alone.
    for (const size_t at : {size_t{0}, size_t{1}, size_t{20}, size_t{33}}) {
      const std::vector<int64_t> stops{all.tokens[0][at], all.tokens[1][at]};
      const harness::Generated some = generate(stops);
      size_t longest = 0;
      for (size_t row = 0; row < 2; ++row) {
        const auto end = std::find_first_of(all.tokens[row].begin(), all.tokens[row].end(),
                                            stops.begin(), stops.end());
        CHECK(some.tokens[row] == std::vector<int64_t>(all.tokens[row].begin(), end + 1));
        longest = std::max(longest, some.tokens[row].size());
      }
      CHECK(some.decoded_per_row == static_cast<int64_t>(longest) - 1);
    }
  }
}

TEST_CASE("a full sequence takes no further step") {
  for (const std::string& name : gpu_devices()) {
    const auto device = open_device(name);
    const harness::ModelFolder folder(harness::find_model("tiny:llama-a1"));
    const auto model = folder.load(*device, DType::f32);
    Decoding decoding(*model, *device, 1, 8, true);
    decoding.prompt(4, 1);
    for (int step = 0; step < 4; ++step) decoding.step(step);
    try {
      decoding.step(0);
      FAIL("no error");
    } catch (const UsageError& error) {
      CHECK(std::string(error.what()) == "[decode] the sequence has room for 8 tokens and is full");
    }
  }
}

TEST_CASE("frequencies that depend on the length are not replayed") {
  for (const std::string& name : gpu_devices()) {
    const auto device = open_device(name);
    const harness::ModelFolder folder(harness::find_model("tiny:llama-a3-dynamic"));
    const auto model = folder.load(*device, DType::f32);
    Decoding decoding(*model, *device, 1, 8, true);
    CHECK(decoding.decode().why_eager() ==
          "launches depend on the length, by rotary frequencies or padding");
    decoding.prompt(2, 1);
    for (int step = 0; step < 4; ++step) decoding.step(step);
    CHECK(decoding.sequence().length == 6);
  }
}

TEST_CASE("what cannot be replayed cannot be recorded") {
  for (const std::string& name : gpu_devices()) {
    const auto device = open_device(name);
    const Tensor x = device->allocate(DType::f32, {4});
    float host[4] = {1, 2, 3, 4};
    device->upload(x, host);
    const auto refused = [&](const char* what, const std::function<void()>& work) {
      try {
        device->capture(work);
        FAIL(what << " was recorded");
      } catch (const UsageError& error) {
        CHECK(std::string(error.what()) ==
              text('[', what, "] while launches are recorded: only kernels can be replayed"));
      }
    };
    refused("allocate", [&] { device->allocate(DType::f32, {4}); });
    refused("upload", [&] { device->upload(x, host); });
    refused("download", [&] { device->download(host, x); });
    refused("synchronize", [&] { device->synchronize(); });
    const auto graph = device->capture([&] { device->ops().add(x, x, x); });
    graph->replay();
    graph->replay();
    device->download(host, x);
    CHECK(host[3] == 16);
  }
}

}  // namespace
}  // namespace plumb
