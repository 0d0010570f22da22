#include "tests/harness/safetensors_bytes.h"

namespace plumb::harness {

std::string safetensors_file(uint64_t length, const std::string& header,
                             const std::string& payload) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(length >> (8 * i) & 0xff);
  return file + header + payload;
}

std::string safetensors_file(const std::string& header, const std::string& payload) {
  return safetensors_file(header.size(), header, payload);
}

std::string safetensors_file(const std::vector<RawTensor>& tensors) {
  std::string header = "{";
  std::string payload;
  for (const RawTensor& t : tensors) {
    std::string shape;
    for (const int64_t extent : t.shape)
      shape.append(shape.empty() ? "" : ",").append(std::to_string(extent));
    const size_t end = payload.size() + t.bytes.size();
    header += (header.size() > 1 ? ",\"" : "\"") + t.name + "\":{\"dtype\":\"" + t.dtype +
              "\",\"shape\":[" + shape + "],\"data_offsets\":[" + std::to_string(payload.size()) +
              "," + std::to_string(end) + "]}";
    payload += t.bytes;
  }
  return safetensors_file(header + "}", payload);
}

}  // namespace plumb::harness
