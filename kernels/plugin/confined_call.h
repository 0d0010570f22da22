// The operands of one call of a plugin's kernel, each in memory of its own that ends where the
// operand does: any access outside it faults at once.
//
// What may be touched of a view is its extent: the bytes from its first element to its last, those
// between its rows too, which belong to others and must stay as they are. Operands whose extents
// meet stay together, as they were. On the host each extent is at the beginning of pages between
// guards, or at their end; an operand that is only read cannot be written. Where the device checks
// bounds it gets allocations of their size.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/ops/ops.h"
#include "kernels/plugin/access_fault.h"
#include "kernels/plugin/guarded_pages.h"

namespace plumb {

class ConfinedCall {
 public:
  // Copies the operands. alignment: of operands at the right end, in bytes; 0: that of their
  // elements.
  ConfinedCall(Device& device, const OpCall& call, PageEnd end, int64_t alignment, PagePool& pool);

  // The address of operand i of call.tensors() in the call; null where it is undefined.
  void* data(size_t i) const { return operands_[i].data; }
  // Scratch memory, as plumb_call promises it.
  void* scratch(int64_t bytes);
  bool watches(const void* p) const;
  // Copies what was written to where it belongs. Throws OutOfBounds, after `where`, where bytes
  // between the rows of an output have changed.
  void give_back(const std::string& where);
  // "read out of bounds: byte 0 past the end of input "x" at my_norm.c:12"
  std::string words(const AccessFault& fault) const;

 private:
  struct Operand {
    Tensor tensor;
    bool written = false;
    int64_t bytes = 0;  // of its extent
    char* data = nullptr;
    size_t home = 0;  // its place in homes_
  };
  // Extents that meet.
  struct Home {
    char* from = nullptr;  // where they are outside the call
    int64_t bytes = 0;
    bool written = false;
    int64_t alignment = 1;
    char* data = nullptr;
    std::shared_ptr<GuardedPages> pages;  // on the host, else
    Tensor block;
  };

  void find_homes();
  void place_on_host(Home& home, PageEnd end, PagePool& pool);
  void place_on_device(Home& home);
  void require_holes(const Home& home, const std::vector<char>& after,
                     const std::string& where) const;
  std::vector<char> bytes_at(const Home& home, bool now) const;
  std::string name_of_operand(size_t i) const;

  Device& device_;
  OpId op_;
  PagePool& pool_;
  const bool on_host_;
  std::vector<Operand> operands_;
  std::vector<Home> homes_;
  std::vector<std::shared_ptr<GuardedPages>> scratch_;
  std::vector<Tensor> device_scratch_;
};

}  // namespace plumb
