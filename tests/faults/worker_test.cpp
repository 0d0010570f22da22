// A device that crashes, hangs or is lost costs the checkpoint that did it, and only that.
#include "harness/run/worker.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "harness/replay/result_json.h"
#include "kernels/core/error.h"
#include "tests/catch.h"
#include "tests/faults/kills.h"

namespace plumb::harness::testing {
namespace {

constexpr size_t kJobs = 5;

const ReplayOptions& replay_options() {
  static ReplayOptions options;
  options.fixture = "fixtures/x";
  return options;
}

// Norms whose inputs differ, so that a device can tell them apart.
std::vector<Job> norms(size_t count) {
  std::vector<Job> out;
  for (const Case& c : suite().cases("rms_norm")) {
    if (out.size() < count) out.push_back({c.recording, c.checkpoint, &replay_options()});
  }
  return out;
}

using Act = std::function<void(FaultyDevice&)>;

// Opens a device that does something wrong in the norm whose input is that of `victim`.
Worker::Open misbehaving(const Job& victim, const Act& act) {
  return [victim, act]() -> std::unique_ptr<Device> {
    static std::unique_ptr<Device> inner;
    static FaultyDevice* self;
    inner = open_device("cpu", 1);
    const Tensor x = victim.recording->read(victim.checkpoint->inputs.at("x").tensor);
    auto device = std::make_unique<FaultyDevice>(
        *inner, Hooks{.rms_norm = [act, x](Call& c, auto& out, auto& in, auto& w, auto& p) {
          if (in.bytes() == x.bytes() && std::memcmp(in.raw(), x.raw(), x.bytes()) == 0) act(*self);
          c.ops.rms_norm(out, in, w, p);
        }});
    self = device.get();
    return device;
  };
}

Act dying_of(int signal) {
  return [signal](FaultyDevice&) {
    ::signal(signal, SIG_DFL);  // sanitizers have handlers of their own
    ::raise(signal);
  };
}

void lose(FaultyDevice& device) {
  device.lose();
  throw DeviceError("an illegal address");
}

void hang(FaultyDevice&) {
  for (;;) ::pause();
}

bool no_child_is_left() { return ::waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD; }

std::vector<CheckpointResult> results_of(const std::vector<Job>& jobs, const Worker::Open& open,
                                         WorkerOptions options = {}) {
  Worker worker("cpu", open, jobs, options);
  worker.start(0, jobs.size());
  std::vector<CheckpointResult> out;
  for (size_t i = 0; i < jobs.size(); ++i) out.push_back(worker.next().result);
  return out;
}

// The victim has that status and reason; the others are as without a fault.
void check_costs_one(const Act& act, size_t victim, Status status, const std::string& reason,
                     WorkerOptions options = {}) {
  const std::vector<Job> jobs = norms(kJobs);
  const auto results = results_of(jobs, misbehaving(jobs[victim], act), options);
  for (size_t i = 0; i < jobs.size(); ++i) {
    INFO("victim " << victim << ", job " << i << ": " << results[i].reason);
    CHECK(results[i].checkpoint == jobs[i].checkpoint->id);
    if (i == victim) {
      CHECK(results[i].status == status);
      CHECK(results[i].reason == reason);
      CHECK(results[i].again.starts_with("harness --fixture fixtures/x --checkpoint '"));
      CHECK(results[i].again.ends_with(" --timeout 3") == (status == Status::timeout));
    } else {
      const Case c{jobs[i].recording, jobs[i].checkpoint};
      CHECK(results[i].status == Status::pass);
      CHECK(results[i].output_sha256 == suite().right(c).output_sha256);
    }
  }
  CHECK(no_child_is_left());
}

std::string error_at_open(const Worker::Open& open, WorkerOptions options = {}) {
  try {
    const Worker worker("gpu:7", open, norms(1), options);
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "none";
}

// Counts in all processes.
struct SharedCount {
  SharedCount()
      : number(new (::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0)) std::atomic<int>(0)) {}
  ~SharedCount() { ::munmap(number, sizeof(std::atomic<int>)); }
  std::atomic<int>* number;
};

}  // namespace

TEST_CASE("a checkpoint that ends the worker is a device error, wherever it is") {
  for (const size_t victim : {size_t{0}, kJobs / 2, kJobs - 1}) {
    check_costs_one(dying_of(SIGSEGV), victim, Status::device_error,
                    "the worker process was killed by signal 11 (Segmentation fault)");
    check_costs_one(dying_of(SIGABRT), victim, Status::device_error,
                    "the worker process was killed by signal 6 (Aborted)");
    check_costs_one([](FaultyDevice&) { ::_exit(3); }, victim, Status::device_error,
                    "the worker process exited with code 3");
    check_costs_one([](FaultyDevice&) { ::_exit(0); }, victim, Status::device_error,
                    "the worker process ended without a result");
  }
}

TEST_CASE("a checkpoint that hangs is a timeout, wherever it is") {
  for (const size_t victim : {size_t{0}, kJobs / 2, kJobs - 1}) {
    check_costs_one(hang, victim, Status::timeout,
                    "the worker process gave no result within 3 s (--timeout)", {.timeout = 3});
  }
}

TEST_CASE("an error that stays is one device error, wherever it is") {
  for (const size_t victim : {size_t{0}, kJobs / 2, kJobs - 1}) {
    check_costs_one(lose, victim, Status::device_error, "an illegal address");
  }
}

TEST_CASE("an error that does not stay needs no new worker") {
  SharedCount opened;
  const std::vector<Job> jobs = norms(kJobs);
  const auto open = misbehaving(jobs[1], [](FaultyDevice&) { throw DeviceError("busy"); });
  const auto results = results_of(jobs, [&] { return ++*opened.number, open(); });
  CHECK(results[1].status == Status::device_error);
  CHECK(results[2].status == Status::pass);
  CHECK(*opened.number == 1);
}

TEST_CASE("a device that cannot be opened says why") {
  CHECK(error_at_open([]() -> std::unique_ptr<Device> { throw DeviceError("no driver"); }) ==
        "no driver");
  CHECK(error_at_open([]() -> std::unique_ptr<Device> { ::_exit(2); }) ==
        "[gpu:7] the worker process exited with code 2 while it opened the device");
  const auto hanging = []() -> std::unique_ptr<Device> {
    for (;;) ::pause();
  };
  CHECK(error_at_open(hanging, {.timeout = 1}) ==
        "[gpu:7] the worker process had not opened the device after 1 s");
  CHECK_THROWS_AS(Worker("x", [] { return open_device("nonsense"); }, norms(1), {}), UsageError);
  CHECK(no_child_is_left());
}

TEST_CASE("a device that cannot be opened again ends it, and every checkpoint has a status") {
  SharedCount opened;
  const std::vector<Job> jobs = norms(kJobs);
  const auto open = misbehaving(jobs[1], dying_of(SIGSEGV));
  const auto results =
      results_of(jobs,
                 [&] {
                   if (++*opened.number > 1) throw DeviceError("it fell off the bus");
                   return open();
                 },
                 {.threads = 1});  // else the first one's judgement may be lost, too
  CHECK(results[0].status == Status::pass);
  CHECK(results[1].reason == "the worker process was killed by signal 11 (Segmentation fault)");
  for (size_t i = 2; i < kJobs; ++i) {
    CHECK(results[i].status == Status::device_error);
    CHECK(results[i].reason ==
          "not run: the device could not be opened again: it fell off the bus");
  }
  CHECK(*opened.number == 4);  // three attempts, then no more
  CHECK(no_child_is_left());
}

TEST_CASE("workers that die one after the other come to an end") {
  const std::vector<Job> jobs = norms(13);
  const auto open = [] {
    static std::unique_ptr<Device> inner;
    inner = open_device("cpu", 1);
    return std::make_unique<FaultyDevice>(
        *inner, Hooks{.rms_norm = [](Call&, auto&, auto&, auto&, auto&) { ::_exit(9); }});
  };
  const auto results = results_of(jobs, open);
  for (size_t i = 0; i < jobs.size(); ++i) {
    CHECK(results[i].status == Status::device_error);
    CHECK(results[i].checkpoint == jobs[i].checkpoint->id);
    CHECK(results[i].reason ==
          (i < 10 ? "the worker process exited with code 9"
                  : "not run: each of the last 10 worker processes exited with code 9"));
  }
}

TEST_CASE("a worker can be asked again, for any jobs") {
  const std::vector<Job> jobs = norms(3);
  Worker worker("cpu", [] { return open_device("cpu", 1); }, jobs, {.keep_outputs = true});
  CHECK(worker.name() == "cpu");
  CHECK_FALSE(worker.description().empty());
  for (const size_t i : {size_t{2}, size_t{0}}) {
    worker.start(i, 1);
    const Replayed done = worker.next();
    CHECK(done.result.checkpoint == jobs[i].checkpoint->id);
    CHECK(done.outputs.at("out").shape() ==
          jobs[i].recording->tensor_info(jobs[i].checkpoint->outputs.at("out").tensor).shape);
  }
}

TEST_CASE("a worker that is not needed any more is gone at once") {
  const std::vector<Job> jobs = norms(2);
  {
    Worker worker("cpu", misbehaving(jobs[1], hang), jobs, {});
    worker.start(0, 2);
    worker.next();
  }
  CHECK(no_child_is_left());
}

TEST_CASE("without a process of its own the results are the same") {
  const std::vector<Job> jobs = norms(2);
  const auto open = [] { return open_device("cpu", 1); };
  const auto here = results_of(jobs, open, {.own_process = false});
  const auto there = results_of(jobs, open);
  for (size_t i = 0; i < jobs.size(); ++i) {
    CHECK(here[i].status == there[i].status);
    CHECK(here[i].output_sha256 == there[i].output_sha256);
  }
}

TEST_CASE("in parallel or in order, in any memory, the results are the same") {
  std::vector<Job> jobs = norms(12);
  const auto wrong = [&]() -> std::unique_ptr<Device> {
    static std::unique_ptr<Device> inner;
    inner = open_device("cpu", 1);
    return std::make_unique<FaultyDevice>(
        *inner, Hooks{.rms_norm = [](Call& c, auto& out, auto& in, auto& w, auto& p) {
          auto changed = p;
          if (in.dim(-2) > 1) changed.eps *= 1000;
          c.ops.rms_norm(out, in, w, changed);
        }});
  };
  const auto packed_of = [&](WorkerOptions options) {
    std::vector<std::string> out;
    for (CheckpointResult& result : results_of(jobs, wrong, options)) {
      result.seconds = 0;
      out.push_back(packed({std::move(result), {}}));
    }
    return out;
  };
  const auto in_turn = packed_of({.threads = 1});
  CHECK(in_turn == packed_of({.own_process = false}));
  CHECK(in_turn == packed_of({.threads = 2}));
  CHECK(in_turn == packed_of({.threads = 8}));
  CHECK(in_turn == packed_of({.threads = 8, .memory = 1}));
  const auto failed = [](const CheckpointResult& it) { return it.status == Status::fail; };
  const auto results = results_of(jobs, wrong, {.threads = 8});
  CHECK(std::count_if(results.begin(), results.end(), failed) > 0);
}

TEST_CASE("devices are looked for in another process") {
  const auto found = probe_devices(), here = list_devices();
  REQUIRE(found.size() == here.size());
  for (size_t i = 0; i < here.size(); ++i) {
    CHECK(found[i].name == here[i].name);
    CHECK(found[i].text == here[i].text);
    CHECK(found[i].usable == here[i].usable);
    CHECK(found[i].contestant == here[i].contestant);
  }
  CHECK(no_child_is_left());
}

}  // namespace plumb::harness::testing
