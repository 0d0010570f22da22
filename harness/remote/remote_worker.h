// A program that computes ops: it is started, asked and, where it died, started again.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "harness/remote/remote_message.h"

namespace plumb::harness {

class RemoteWorker {
 public:
  // `name` is the device's, for errors. Starts the command and reads its first message; DeviceError
  // where it has none within a minute. It ends with this object.
  RemoteWorker(std::string name, std::vector<std::string> command);
  ~RemoteWorker();
  RemoteWorker(const RemoteWorker&) = delete;
  RemoteWorker& operator=(const RemoteWorker&) = delete;

  const RemoteHello& hello() const { return hello_; }
  // Has it compute the call. As take_outputs(); DeviceError, too, where it dies, which costs this
  // call: the next one starts it again.
  void run(const OpCall& call, const std::string& where);

 private:
  void start();
  std::string end(bool kill);  // how it ended
  bool send(const std::string& bytes) const;

  std::string name_;
  std::vector<std::string> command_;
  RemoteHello hello_;
  Descriptor socket_;
  pid_t pid_ = -1;
};

}  // namespace plumb::harness
