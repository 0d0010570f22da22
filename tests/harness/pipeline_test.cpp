// Runs one after the other share what is on the device.
#include "harness/run/pipeline.h"

#include "harness/recording/select.h"
#include "tests/catch.h"

namespace plumb::harness {
namespace {

// Counts the large tensors that come to it.
class CountingDevice final : public Device {
 public:
  explicit CountingDevice(Device& inner) : inner_(inner) {}

  std::string name() const override { return inner_.name(); }
  std::string describe() const override { return inner_.describe(); }
  Tensor allocate(DType dtype, const Shape& shape) override {
    return inner_.allocate(dtype, shape);
  }
  void upload(const Tensor& to, const void* from) override {
    uploads_ += to.bytes() >= kLarge;
    inner_.upload(to, from);
  }
  void download(void* to, const Tensor& from) override { inner_.download(to, from); }
  void fill(const Tensor& t, uint8_t byte) override { inner_.fill(t, byte); }
  void synchronize() override { inner_.synchronize(); }
  Ops& ops() override { return inner_.ops(); }

  int uploads() const { return uploads_; }

 private:
  static constexpr int64_t kLarge = int64_t{1} << 20;

  Device& inner_;
  int uploads_ = 0;
};

}  // namespace

TEST_CASE("weights stay for later runs, however few jobs each has") {
  const Recording recording = Recording::open(default_fixtures() / "border-odd" / "whole-f32");
  const ReplayOptions options;
  std::vector<Job> jobs;
  for (const Checkpoint& checkpoint : recording.checkpoints()) {
    if (!checkpoint.weights.empty()) jobs.push_back({&recording, &checkpoint, &options});
  }
  const auto cpu = open_device("cpu", 1);
  CountingDevice device(*cpu);
  const auto oracle = open_device("oracle", 1);
  std::vector<std::string> results;
  Pipeline pipeline(device, *oracle, 2, int64_t{1} << 30,
                    [](CheckpointRun& run) { return std::string(name_of(run.result().status)); });
  const auto nothing = [](size_t) {};
  const auto ends = [&](size_t, const std::string& result, bool) {
    results.push_back(result);
    return true;
  };
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (size_t i = 0; i < jobs.size(); ++i) {
      REQUIRE(pipeline.run(jobs, i, 1, {nothing, nothing, ends}));
    }
  }
  REQUIRE(pipeline.run(jobs, 0, jobs.size(), {nothing, nothing, ends}));
  CHECK(results == std::vector<std::string>(3 * jobs.size(), "pass"));
  CHECK(device.uploads() == 2);  // the embedding's and that of all products
}

}  // namespace plumb::harness
