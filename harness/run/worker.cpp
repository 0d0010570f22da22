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
#include "kernels/error.h"
#include "kernels/plugin_device.h"

namespace plumb::harness {
namespace {

using std::chrono::milliseconds;

constexpr int kMostEndsInARow = 10;
constexpr milliseconds kPauses[] = {milliseconds(0), milliseconds(200), milliseconds(1000)};
constexpr double kProbeSeconds = 60;

// A result's first byte: whether the worker has others, or ends because its device is lost.
enum More : char { goes_on = '+', ends = '.' };

struct Range {
  uint64_t first, count;
};

// After some errors every further call fails, whatever it is.
bool still_works(Device& device) {
  try {
    device.synchronize();
    return true;
  } catch (const std::exception&) {
    return false;
  }
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
  explicit Execution(const Open& open) : device(open()), oracle(open_device("oracle")) {}

  Replayed run(const Job& job, bool keep_outputs) const {
    if (!job.checkpoint) return {run_chain(*job.recording, *device, *oracle, *job.options), {}};
    Replayer replayer(*job.recording, *device, *oracle, *job.options);
    Replayed out = replayer.run_and_keep(*job.checkpoint);
    if (!keep_outputs) out.outputs.clear();
    return out;
  }

  std::unique_ptr<Device> device, oracle;
};

Worker::Worker(std::string name, Open open, std::vector<Job> jobs, WorkerOptions options)
    : name_(std::move(name)), open_(std::move(open)), jobs_(std::move(jobs)), options_(options) {
  if (options_.own_process) {
    launch();
    return;
  }
  here_ = std::make_unique<Execution>(open_);
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
    execution = std::make_unique<Execution>(open_);
    const bool finds = execution->device->ops().choice().finds(impl());
    return text(finds, execution->device->name(), '\n', execution->device->describe());
  });
  channel.send(answer);
  std::string message;
  while (execution && channel.receive(message) == Channel::Event::message) {
    Range range{};
    std::memcpy(&range, message.data(), sizeof range);
    for (uint64_t i = range.first; i < range.first + range.count; ++i) {
      bool lost = false;
      const std::string result = serialised([&] {
        Replayed done = execution->run(jobs_[i], options_.keep_outputs);
        lost = done.result.status == Status::device_error && !still_works(*execution->device);
        return static_cast<char>(lost ? ends : goes_on) + packed(std::move(done));
      });
      std::cout.flush();
      std::fflush(stdout);  // what a kernel printed comes before what is said about it
      if (!channel.send(result) || lost) return;
    }
  }
}

void Worker::launch() {
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
  log(LogLevel::info, name_, ": the rest goes on in a new worker process");
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

void Worker::ask() {
  const Range range{at_, end_ - at_};
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

Replayed Worker::next() {
  const Job& job = jobs_.at(at_);
  if (here_) return ++at_, here_->run(job, options_.keep_outputs);
  if (!process_ && !gave_up()) {
    relaunch();
    if (process_) ask();
  }
  ++at_;
  if (gave_up()) return lost(job, Status::device_error, "not run: " + given_up_);

  std::string message;
  const Channel::Event event =
      process_->channel().receive(message, Channel::deadline_in(options_.timeout));
  if (event == Channel::Event::message) {
    const std::string answer = deserialised(message);
    Replayed out = unpacked(std::string_view(answer).substr(1));
    if (answer.front() == ends) {
      process_.reset();
      count_end("lost the device");
    } else {
      ends_in_a_row_ = 0;
    }
    return out;
  }
  if (event == Channel::Event::interrupted) throw Interrupted();
  const bool late = event == Channel::Event::late;
  const std::string how =
      late ? text("gave no result within ", options_.timeout, " s") : process_->early_end();
  process_.reset();
  Replayed out = lost(job, late ? Status::timeout : Status::device_error,
                      text("the worker process ", how, late ? " (--timeout)" : ""));
  count_end(how);
  return out;
}

}  // namespace plumb::harness
