#include "blocks/context.h"

namespace plumb::blocks {

std::string Context::below(std::string_view part) const {
  std::string out = path;
  if (!out.empty() && !part.empty() && part.front() != ':') out += '.';
  return out += part;
}

Part::Part(Context& ctx, std::string_view name, std::optional<int64_t> index)
    : ctx_(ctx), outer_(ctx.path.size()) {
  if (!ctx.observer) return;
  ctx.path = ctx.below(name);
  if (index) ctx.path += '.' + std::to_string(*index);
}

}  // namespace plumb::blocks
