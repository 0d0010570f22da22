// Devices whose ops are computed by another program (harness/remote/protocol.md): "exec:CMD" and
// "python:MODULE".
#pragma once

namespace plumb::harness {

// From now on they can be opened. Call it before the first device is.
void know_remote_devices();

}  // namespace plumb::harness
