// The part of the runtime that a launcher uses: memory, copies, streams. Work is done at once; an
// error in a kernel is thrown by its launch (DeviceError), not reported by cudaGetLastError().
#pragma once

#include <cstring>
#include <memory>

#include "kernels/emu/cuda/launch.h"

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2 };
using cudaError = cudaError_t;
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize,
  cudaFuncAttributePreferredSharedMemoryCarveout
};

inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "out of memory or invalid value";
}
inline const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute, int) {
  return cudaSuccess;
}

template <class T>
cudaError_t cudaMalloc(T** p, size_t bytes) {
  try {
    *p = static_cast<T*>(plumb::PLUMB_GPU_VENDOR::memory_allocate(bytes));
    return cudaSuccess;
  } catch (const plumb::DeviceError&) {
    return cudaErrorMemoryAllocation;
  }
}
inline cudaError_t cudaFree(void* p) {
  plumb::PLUMB_GPU_VENDOR::memory_free(p);
  return cudaSuccess;
}
template <class T>
cudaError_t cudaMallocHost(T** p, size_t bytes) {
  return *p = static_cast<T*>(std::malloc(bytes)), *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaFreeHost(void* p) { return std::free(p), cudaSuccess; }

inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t stream = nullptr) {
  namespace vendor = plumb::PLUMB_GPU_VENDOR;
  const cudaStream_t queue = vendor::plain::stream_or_default(stream);
  if (kind == cudaMemcpyHostToDevice)
    return vendor::copy_to_device(to, from, bytes, queue), cudaSuccess;
  if (kind == cudaMemcpyDeviceToHost)
    return vendor::copy_to_host(to, from, bytes, queue), cudaSuccess;
  if (kind == cudaMemcpyHostToHost) return std::memcpy(to, from, bytes), cudaSuccess;
  if (kind != cudaMemcpyDeviceToDevice) return cudaErrorInvalidValue;
  const auto between = std::make_unique<char[]>(bytes);
  vendor::copy_to_host(between.get(), from, bytes, queue);
  vendor::copy_to_device(to, between.get(), bytes, queue);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind);
}
inline cudaError_t cudaMemsetAsync(void* p, int byte, size_t bytes, cudaStream_t stream = nullptr) {
  namespace vendor = plumb::PLUMB_GPU_VENDOR;
  vendor::memory_fill(p, static_cast<uint8_t>(byte), bytes,
                      vendor::plain::stream_or_default(stream));
  return cudaSuccess;
}
inline cudaError_t cudaMemset(void* p, int byte, size_t bytes) {
  return cudaMemsetAsync(p, byte, bytes);
}
// A __constant__ variable is one of the host here.
template <class T>
cudaError_t cudaMemcpyToSymbol(T& symbol, const void* from, size_t bytes, size_t offset = 0) {
  std::memcpy(reinterpret_cast<char*>(&symbol) + offset, from, bytes);
  return cudaSuccess;
}

inline cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return *stream = plumb::PLUMB_GPU_VENDOR::make_stream(), cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return plumb::PLUMB_GPU_VENDOR::end_stream(stream), cudaSuccess;
}
