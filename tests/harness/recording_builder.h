// A good recording, small and complete, for tests to read and to damage.
#pragma once

#include <filesystem>
#include <string>

namespace plumb::harness {

// Writes `model`/decode-f32/{recording.json, tensors.safetensors} and
// `model`/weights-f32.safetensors; returns the folder with recording.json.
//
// Checkpoints: model.norm#0, an rms_norm of t0 (f32 [2, 3, 4]) and w0 with the output t1, its delta
// t2 and the validity mask t3 (bool [2, 1, 1]); model.norm:add#0, of t0 and t1 with the output t1
// and no delta. The params of the second hold a value of every kind.
std::filesystem::path write_good_recording(const std::filesystem::path& model);

}  // namespace plumb::harness
