#include "tests/emu/barrier_faults.h"
#include "tests/emu/fault_cases.h"
#include "tests/emu/memory_faults.h"
#include "tests/emu/view_faults.h"

namespace plumb::PLUMB_GPU_VENDOR {

const std::vector<FaultCase>& fault_cases() {
  static const std::vector<FaultCase> list = {
      {"no barrier before reading the next thread's value", "race: ", nullptr, true,
       missing_block_barrier<false, 1>, missing_block_barrier<true, 1>},
      {"no barrier before reading the previous thread's value", "race: ", nullptr, true,
       missing_block_barrier<false, -1>, missing_block_barrier<true, -1>},
      {"no barrier at the end of a tile loop", "race: ", nullptr, true,
       missing_barrier_at_end_of_tile<false>, missing_barrier_at_end_of_tile<true>},
      {"no wave barrier, lanes taken to run in lock step", "race: ", nullptr, true,
       missing_wave_barrier<false>, missing_wave_barrier<true>},
      {"one thread does not wait for the kernel before it", "without wait_for_previous_kernel",
       "without wait_for_previous_kernel", true, missing_wait_for_previous_kernel<false>,
       missing_wait_for_previous_kernel<true>},
      {"read of what the kernel before writes", "read ahead of wait_for_previous_kernel()", nullptr,
       true, read_ahead_of_the_kernel_before<false>, read_ahead_of_the_kernel_before<true>},
      {"the same when only another queue was waited for",
       "read ahead of wait_for_previous_kernel()", nullptr, true,
       read_ahead_behind_another_queue<false>, read_ahead_behind_another_queue<true>},
      {"read of what another queue has been given", "read ahead of wait_for_previous_kernel()",
       nullptr, true, read_ahead_of_another_queue<false>, read_ahead_of_another_queue<true>},
      {"read of half of a number that the kernel before writes",
       "read ahead of wait_for_previous_kernel()", nullptr, true, read_of_a_byte_ahead<false>,
       read_of_a_byte_ahead<true>},
      {"write before the kernels ahead have ended", "write ahead of wait_for_previous_kernel()",
       nullptr, true, write_ahead_of_the_kernel_before<false>,
       write_ahead_of_the_kernel_before<true>},
      {"shuffle in a branch", "divergence: ", "divergence: ", true, divergent_shuffle<false>,
       divergent_shuffle<true>},
      {"exit before a barrier", "divergence: ", "divergence: ", true, exit_before_barrier<false>,
       exit_before_barrier<true>},
      {"a barrier in each side of a branch", "divergent block_barrier", "divergent block_barrier",
       true, two_barriers_in_a_branch<false>, two_barriers_in_a_branch<true>},
      {"two threads write the same value to device memory", "race: ", nullptr, true,
       device_memory_race<false>, device_memory_race<true>},
      {"all threads write the same value to shared memory", "race: ", nullptr, true,
       shared_memory_race<false>, shared_memory_race<true>},
      {"blocks add without an atomic", "of another block", nullptr, true,
       race_between_blocks<false>, race_between_blocks<true>},
      {"read of shared memory over by one", "read out of bounds", nullptr, true,
       shared_read_over<false>, shared_read_over<true>},
      {"write of shared memory over by one", "write out of bounds", "a write outside shared memory",
       true, shared_write_over<false>, shared_write_over<true>},
      {"read of device memory over by one", "read out of bounds", nullptr, true,
       device_read_over<false>, device_read_over<true>},
      {"write of device memory over by one", "write out of bounds", "a write outside device memory",
       true, device_write_over<false>, device_write_over<true>},
#ifndef __SANITIZE_ADDRESS__  // such builds have no device emu-check
      {"read of a view over by one", "read out of bounds", nullptr, true, view_read_over<false>,
       view_read_over<true>},
#endif
      {"device memory used after it was freed", "that was freed", nullptr, true,
       use_after_free<false>, use_after_free<true>},
      {"shared memory read before it is written", "never written", nullptr, true,
       uninitialised_shared<false>, uninitialised_shared<true>},
      {"device memory read before it is written", "never written", nullptr, true,
       uninitialised_device<false>, uninitialised_device<true>},
      {"misaligned vector", "vector access of 16 bytes", "vector access of 16 bytes", true,
       misaligned_vector<false>, misaligned_vector<true>},
      {"local array over by one", "outside its array", nullptr, true, local_array_over<false>,
       local_array_over<true>},
      {"shuffle from a lane that does not exist", "of a wave that has", "of a wave that has", true,
       absent_lane<false>, absent_lane<true>},
      {"warp_sum<32>", "of width 32 on a device of wave width 64",
       "of width 32 on a device of wave width 64", false, width_32_as_argument<false>,
       width_32_as_argument<true>},
      {"32 lanes in a loop", nullptr, nullptr, false, width_32_in_a_loop<false>,
       width_32_in_a_loop<true>},
  };
  return list;
}

}  // namespace plumb::PLUMB_GPU_VENDOR
