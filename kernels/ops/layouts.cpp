#include "kernels/ops/layouts.h"

#include <array>

namespace plumb {
namespace {

constexpr std::array<LayoutRow, kLayouts> kLayoutTable = {{
#define PLUMB_LAYOUT(id, label, ...) {.name = label, __VA_ARGS__},
#include "kernels/ops/layout_list.h"
}};

}  // namespace

const LayoutRow& row_of(QuantLayout layout) { return kLayoutTable.at(static_cast<size_t>(layout)); }

std::optional<QuantLayout> layout_from_name(std::string_view name) {
  for (int i = 0; i < kLayouts; ++i) {
    const auto layout = static_cast<QuantLayout>(i);
    if (name_of(layout) == name) return layout;
  }
  return std::nullopt;
}

}  // namespace plumb
