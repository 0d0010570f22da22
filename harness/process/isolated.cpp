#include "harness/process/isolated.h"

#include <iostream>

#include "harness/process/interrupt.h"
#include "harness/process/process.h"
#include "harness/process/serialised_result.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// First bytes of messages.
enum Frame : char { step = 's', outcome = 'o' };

std::string framed(Frame frame, const std::string& words) {
  return static_cast<char>(frame) + words;
}

}  // namespace

int run_isolated(const std::string& command, const WorkerOptions& options,
                 const std::function<int(const Step&)>& work) {
  if (!options.own_process) return work([](const std::string&) {});
  catch_interrupts();
  Process process([&](const Channel& channel) {
    const Step say = [&](const std::string& what) { channel.send(framed(step, what)); };
    channel.send(framed(outcome, serialised([&] {
                          const int code = work(say);
                          std::cout.flush();
                          require<UsageError>(code != 0 || std::cout.good(), "stdout", kOutputLost);
                          return std::to_string(code);
                        })));
  });
  std::string at = "the start";
  const auto lost = [&](const std::string& how) {
    return text('[', command, "] ", at, ": the worker process ", how,
                "; to run it in a debugger add --no-worker");
  };
  for (;;) {
    std::string received;
    switch (process.channel().receive(received, Channel::deadline_in(options.timeout))) {
      case Channel::Event::interrupted: throw Interrupted();
      case Channel::Event::late:
        throw TimedOut(lost(text("did not finish within ", options.timeout, " s (--timeout)")));
      case Channel::Event::closed: throw DeviceError(lost(process.early_end()));
      case Channel::Event::message: break;
    }
    const std::string words = received.substr(1);
    if (received[0] == step) {
      at = words;
      continue;
    }
    const std::string how = process.end();  // what it printed is then all there
    if (!how.empty()) throw DeviceError(lost(how + " when it closed the device"));
    return std::stoi(deserialised(words));
  }
}

}  // namespace plumb::harness
