// What a program on the other side of a pipe is asked, and answers (harness/remote/protocol.md): a
// safetensors file.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "harness/io/file.h"
#include "harness/io/safetensors.h"
#include "kernels/ops/op_call.h"

namespace plumb::harness {

// The bytes of a call: its op, parameters, outputs and formula as words, its inputs as tensors.
std::string request_of(const OpCall& call);

// The end of a message that is no message: what came instead, as text.
class NoMessage : public Error {
 public:
  using Error::Error;
};

// Reads one message. NoMessage where other bytes come, or none before the connection ends or
// `seconds` are over (0: no limit); BadInput, which calls it `name`, where its header is wrong.
SafetensorsFile read_message(int descriptor, const std::string& name, double seconds);

// The outputs of the call, taken from an answer. DeviceError where it says that it failed, lacks
// one, or gives another dtype or shape; Unsupported where it says so. `where` begins the text.
void take_outputs(const SafetensorsFile& answer, const OpCall& call, const std::string& where);

// The words of a list of ops in a first message, each with its contract.
struct RemoteHello {
  std::string name;
  std::map<OpId, Contract> ops;  // their storage is f32: the call's counts
};
// BadInput where it speaks another protocol, or names what is no op.
RemoteHello hello_of(const SafetensorsFile& message);

}  // namespace plumb::harness
