#include "harness/run/worker.h"

#include <algorithm>
#include <cstring>
#include <iostream>
#include <thread>

#include "harness/chain/chain.h"
#include "harness/io/log.h"
#include "harness/process/interrupt.h"
#include "harness/process/serialised_result.h"
#include "harness/replay/result_json.h"
#include "harness/run/memory.h"
#include "harness/run/pipeline.h"
#include "kernels/core/error.h"
#include "kernels/core/thread_pool.h"
#include "kernels/oracle/float64_products.h"
#include "kernels/plugin/plugin_device.h"

namespace plumb::harness {
namespace {

using std::chrono::milliseconds;

constexpr int kMostEndsInARow = 10;
constexpr milliseconds kPauses[] = {milliseconds(0), milliseconds(200), milliseconds(1000)};
constexpr double kProbeSeconds = 60;

// A message's first byte: the device begins a job, has run it; a job has its result, and it ended
// the process, too.
enum Kind : char { begins = 'b', ran = 'a', result = 'r', last = 'l' };

struct Range {
  uint64_t first, count;
};

std::string message(Kind kind, size_t job, const std::string& words = {}) {
  const uint64_t index = job;
  return static_cast<char>(kind) +
         std::string(reinterpret_cast<const char*>(&index), sizeof index) + words;
}

int judging_threads(const WorkerOptions& options) {
  return options.threads > 0 ? options.threads : usable_cores();
}

}  // namespace

std::vector<DeviceStatus> probe_devices() {
  Process process([](const Channel& channel) {
    std::vector<DeviceStatus> found;
    const std::string answer = serialised([&] {
      found = list_devices();
      return std::to_string(found.size());
    });
    channel.send(answer);
    for (const DeviceStatus& status : found) {
      channel.send(status.name);
      channel.send(status.text);
      channel.send({status.usable ? "u" : "-", 1});
      channel.send({status.contestant ? "c" : "-", 1});
    }
  });
  const auto deadline = Channel::deadline_in(kProbeSeconds);
  const auto receive = [&] {
    std::string message;
    const Channel::Event event = process.channel().receive(message, deadline);
    if (event == Channel::Event::message) return message;
    if (event == Channel::Event::interrupted) throw Interrupted();
    const bool late = event == Channel::Event::late;
    throw DeviceError(text("[devices] the process that looks for devices ",
                           late ? text("found none in ", kProbeSeconds, " s") : process.early_end(),
                           "; name one with --device, e.g. --device cpu"));
  };
  std::vector<DeviceStatus> out(std::stoul(deserialised(receive())));
  for (DeviceStatus& status : out) {
    status.name = receive();
    status.text = receive();
    status.usable = receive() == "u";
    status.contestant = receive() == "c";
  }
  return out;
}

void add_plugins(const std::vector<std::string>& files, const WorkerOptions& options) {
  if (!options.own_process) {
    for (const std::string& file : files) load_plugin(file);
    return;
  }
  if (files.empty()) return;
  Process process([&](const Channel& channel) {
    for (const std::string& file : files) {
      channel.send(serialised([&] { return load_plugin(file), std::string(); }));
      if (loaded_plugins().empty()) return;  // the other end throws
      channel.send(loaded_plugins().back().file);
      channel.send(loaded_plugins().back().device);
      channel.send(describe_plugins().back());
    }
  });
  const double seconds =
      options.timeout > 0 ? std::min(options.timeout, kProbeSeconds) : kProbeSeconds;
  for (const std::string& file : files) {
    const auto receive = [&, deadline = Channel::deadline_in(seconds)] {
      std::string message;
      const Channel::Event event = process.channel().receive(message, deadline);
      const std::string where = text("[plugin] ", file, ": ");
      if (event == Channel::Event::interrupted) throw Interrupted();
      if (event == Channel::Event::late)
        throw TimedOut(text(where, "was not loaded within ", seconds, " s"));
      if (event == Channel::Event::closed)
        throw DeviceError(where + "the process that loaded it " + process.early_end());
      return message;
    };
    deserialised(receive());
    LoadedPlugin plugin{receive(), receive()};
    declare_plugin(std::move(plugin), receive());
  }
}

// The device and the referee in the process where they work.
struct Worker::Execution {
  Execution(const Open& open, const WorkerOptions& options)
      : keep_outputs(options.keep_outputs),
        device(open()),
        oracle(open_referee(*device)),
        pipeline(*device, *oracle, options.own_process ? judging_threads(options) : 1,
                 options.memory > 0 ? options.memory : memory_by_default(),
                 [this](CheckpointRun& run) { return packed(kept(run.take())); }) {
    const std::shared_ptr<Float64Products> products = device->float64_products();
    if (!products) return;
    products->tell_failure_to([name = products->name()](const std::string& why) {
      log(LogLevel::warning, name, " leaves the oracle's products to the CPU: ", why);
    });
  }

  Replayed kept(Replayed replayed) const {
    if (!keep_outputs) replayed.outputs.clear();
    return replayed;
  }

  Replayed run(const Job& job) {
    if (!job.checkpoint) return {chain(job), {}};
    Replayer replayer(*job.recording, *device, *oracle, *job.options);
    return kept(replayer.run_and_keep(*job.checkpoint));
  }

  CheckpointResult chain(const Job& job) {
    const auto side_by_side = [&](const std::vector<const Checkpoint*>& checkpoints) {
      std::vector<Job> jobs;
      for (const Checkpoint* it : checkpoints) jobs.push_back({job.recording, it, job.options});
      std::vector<CheckpointResult> out;
      const auto nothing = [](size_t) {};
      const auto ends = [&](size_t, const std::string& words, bool) {
        out.push_back(unpacked(words).result);
        return true;
      };
      if (!pipeline.run(jobs, 0, jobs.size(), {nothing, nothing, ends})) {
        throw DeviceError(text(out.back().checkpoint, ": ", out.back().reason));
      }
      return out;
    };
    return run_chain(*job.recording, *device, *oracle, *job.options, side_by_side);
  }

  // Chains take the whole device, and all of the oracle's threads. False as Pipeline::run().
  bool run(const std::vector<Job>& jobs, const Range& range, const Pipeline::Listener& listener) {
    const size_t end = range.first + range.count;
    for (size_t at = range.first; at < end;) {
      size_t stop = at;
      while (stop < end && jobs[stop].checkpoint) ++stop;
      if (stop > at && !pipeline.run(jobs, at, stop - at, listener)) return false;
      at = stop;
      if (at == end) break;
      listener.begins(at);
      Replayed chain = run(jobs[at]);
      const bool lost = chain.result.status == Status::device_error && !still_works(*device);
      if (!listener.ends(at++, packed(chain), lost) || lost) return false;
    }
    return true;
  }

  const bool keep_outputs;
  std::unique_ptr<Device> device, oracle;
  Pipeline pipeline;
};

Worker::Worker(std::string name, Open open, std::vector<Job> jobs, WorkerOptions options)
    : name_(std::move(name)), open_(std::move(open)), jobs_(std::move(jobs)), options_(options) {
  if (options_.own_process) {
    launch();
    return;
  }
  here_ = std::make_unique<Execution>(open_, options_);
  name_ = here_->device->name();
  description_ = here_->device->describe();
  finds_impl_ = here_->device->ops().choice().finds(impl());
}

Worker::~Worker() {
  if (!process_ || at_ < end_) return;  // its result is no longer wanted: killed
  const std::string how = process_->end();
  if (!how.empty())
    log(LogLevel::warning, name_, ": the worker process ", how, " when it closed the device");
}

void Worker::serve(const Channel& channel) const {
  std::unique_ptr<Execution> execution;
  const std::string answer = serialised([&] {
    execution = std::make_unique<Execution>(open_, options_);
    const bool finds = execution->device->ops().choice().finds(impl());
    return text(finds, execution->device->name(), '\n', execution->device->describe());
  });
  channel.send(answer);
  const Pipeline::Listener listener{
      [&](size_t job) { channel.send(serialised([&] { return message(begins, job); })); },
      [&](size_t job) { channel.send(serialised([&] { return message(ran, job); })); },
      [&](size_t job, const std::string& words, bool lost) {
        std::cout.flush();
        std::fflush(stdout);  // what a kernel printed comes before what is said about it
        return channel.send(serialised([&] { return message(lost ? last : result, job, words); }));
      }};
  std::string request;
  while (execution && channel.receive(request) == Channel::Event::message) {
    Range range{};
    std::memcpy(&range, request.data(), sizeof range);
    if (!execution->run(jobs_, range, listener)) return;
  }
}

void Worker::launch() {
  asked_ = 0;
  running_.reset();
  process_ = std::make_unique<Process>([this](const Channel& channel) { serve(channel); });
  std::string message;
  const Channel::Event event =
      process_->channel().receive(message, Channel::deadline_in(options_.timeout));
  if (event == Channel::Event::message) {
    const std::string words = deserialised(message);
    const size_t cut = words.find('\n');
    finds_impl_ = words.front() == '1';
    name_ = words.substr(1, cut - 1);
    description_ = words.substr(cut + 1);
    return;
  }
  if (event == Channel::Event::interrupted) throw Interrupted();
  const std::string how = event == Channel::Event::late
                              ? text("had not opened the device after ", options_.timeout, " s")
                              : process_->early_end() + " while it opened the device";
  process_.reset();
  throw DeviceError(text("[", name_, "] the worker process ", how));
}

void Worker::relaunch() {
  log(LogLevel::info, name_, ": the rest continues in a new worker process");
  std::string reason;
  for (const milliseconds pause : kPauses) {  // a driver may need a moment to clean up
    std::this_thread::sleep_for(pause);
    try {
      return launch();
    } catch (const std::exception& error) {
      reason = error.what();
      process_.reset();
    }
  }
  given_up_ = "the device could not be opened again: " + reason;
}

void Worker::start(size_t first, size_t count) {
  at_ = first;
  end_ = first + count;
  if (process_) ask();
}

// Up to the next job whose result is known.
void Worker::ask() {
  const auto known = ahead_.lower_bound(at_);
  asked_ = known == ahead_.end() ? end_ : std::min(end_, known->first);
  const Range range{at_, asked_ - at_};
  // If this fails, the worker is dead, which next() finds out.
  process_->channel().send({reinterpret_cast<const char*>(&range), sizeof range});
}

Replayed Worker::lost(const Job& job, Status status, const std::string& reason) const {
  Replayed out{job.checkpoint ? result_to_be(*job.recording, *job.checkpoint, name_, *job.options)
                              : chain_to_be(*job.recording, name_, *job.options),
               {}};
  out.result.status = status;
  out.result.reason = reason;
  std::string& again = out.result.again;
  if (!gave_up()) {
    const size_t program = again.find("harness ");  // behind variables of the environment
    out.result.details = {text("in a debugger: ", again.substr(0, program), "gdb --args ",
                               again.substr(program), " --no-worker")};
  }
  if (status == Status::timeout && options_.timeout != WorkerOptions().timeout) {
    again += text(" --timeout ", options_.timeout);
  }
  return out;
}

void Worker::count_end(const std::string& how) {
  if (++ends_in_a_row_ < kMostEndsInARow) return;
  given_up_ = text("each of the last ", kMostEndsInARow, " worker processes ", how);
}

// The result of a job, or nothing where the message is none of the job that is waited for.
std::optional<Replayed> Worker::received(const std::string& message) {
  const std::string answer = deserialised(message);
  uint64_t job = 0;
  std::memcpy(&job, answer.data() + 1, sizeof job);
  if (answer.front() == begins) running_ = job;
  else if (running_ == job) running_.reset();
  if (answer.front() == begins || answer.front() == ran) return std::nullopt;
  Replayed out = unpacked(std::string_view(answer).substr(1 + sizeof job));
  if (answer.front() == last) {
    process_.reset();
    count_end("lost the device");
  } else {
    ends_in_a_row_ = 0;
  }
  if (job == at_) return out;
  ahead_.emplace(job, std::move(out));
  return std::nullopt;
}

// The process is gone, or has to go: the job that its device ran is to blame, or the one whose
// result does not come.
void Worker::blame(bool late) {
  const std::string how =
      late ? text("gave no result within ", options_.timeout, " s") : process_->early_end();
  process_.reset();
  const size_t job = running_.value_or(at_);
  ahead_.emplace(job, lost(jobs_.at(job), late ? Status::timeout : Status::device_error,
                           text("the worker process ", how, late ? " (--timeout)" : "")));
  count_end(how);
}

Replayed Worker::next() {
  const Job& job = jobs_.at(at_);
  if (here_) return ++at_, here_->run(job);
  const auto deadline = [&] { return Channel::deadline_in(options_.timeout); };
  for (auto until = deadline();;) {
    if (auto known = ahead_.extract(at_)) return ++at_, std::move(known.mapped());
    if (!process_ && !gave_up()) {
      relaunch();
      until = deadline();
    }
    if (gave_up()) return ++at_, lost(job, Status::device_error, "not run: " + given_up_);
    if (at_ >= asked_) ask();
    std::string message;
    const Channel::Event event = process_->channel().receive(message, until);
    if (event == Channel::Event::interrupted) throw Interrupted();
    if (event != Channel::Event::message) {
      blame(event == Channel::Event::late);
    } else if (std::optional<Replayed> out = received(message)) {
      return ++at_, std::move(*out);
    }
    until = deadline();  // it is alive
  }
}

}  // namespace plumb::harness
