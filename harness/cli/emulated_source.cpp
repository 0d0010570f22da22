#include "harness/cli/emulated_source.h"

#include <algorithm>
#include <array>
#include <vector>

#include "harness/cli/source_tokens.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

constexpr std::string_view kPlain = "::plumb::PLUMB_GPU_VENDOR::plain::";

class SourceTranslation {
 public:
  SourceTranslation(const std::string& text, std::string file,
                    const std::function<std::string(const std::string&)>& included)
      : text_(text), file_(std::move(file)), included_(included), tokens_(source_tokens(text)) {}

  std::string result() {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      follow_braces(i);
      if (tokens_[i].kind == SourceToken::Kind::include) include(i);
      if (is(i, "__shared__")) i = shared_variables(i);
      if (is_triple(i, '<')) i = launch(i);
    }
    std::string out;
    size_t at = 0;
    for (const Edit& edit : edits_) {
      out += text_.substr(at, edit.begin - at) + edit.with;
      at = edit.end;
    }
    return out + text_.substr(at);
  }

 private:
  struct Edit {
    size_t begin, end;
    std::string with;
  };

  std::string word(size_t i) const {
    return i < tokens_.size() ? text_.substr(tokens_[i].begin, tokens_[i].end - tokens_[i].begin)
                              : std::string();
  }
  bool is(size_t i, std::string_view what) const {
    return i < tokens_.size() && tokens_[i].kind != SourceToken::Kind::literal && word(i) == what;
  }
  bool is_name(size_t i) const {
    return i < tokens_.size() && tokens_[i].kind == SourceToken::Kind::word;
  }
  bool is_triple(size_t i, char c) const {
    const std::string one(1, c);
    return is(i, one) && is(i + 1, one) && is(i + 2, one) &&
           tokens_[i + 2].end == tokens_[i].begin + 3;
  }
  [[noreturn]] void reject(size_t i, const std::string& what) const {
    const size_t at = i < tokens_.size() ? tokens_[i].begin : text_.size();
    const auto line =
        1 + std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(at), '\n');
    throw BadInput(text("[plugin-flags] ", file_, ":", line, ": ", what));
  }
  std::string span(size_t first, size_t end) const {  // of tokens
    return first < end
               ? text_.substr(tokens_[first].begin, tokens_[end - 1].end - tokens_[first].begin)
               : std::string();
  }

  // The token that closes what token i opens, or opens what it closes.
  size_t partner(size_t i, int step) const {
    constexpr std::string_view kOpen = "([{<", kClose = ")]}>";
    const bool forward = step > 0;
    const size_t kind = (forward ? kOpen : kClose).find(word(i));
    const std::string own = word(i), other(1, (forward ? kClose : kOpen)[kind]);
    int depth = 0;
    for (size_t at = i; at < tokens_.size(); at += static_cast<size_t>(step)) {
      if (is(at, own)) ++depth;
      if (is(at, other) && --depth == 0) return at;
      if (own == "<" || own == ">") {
        if (is(at, ";")) break;
        const std::string inner = forward ? "(" : ")";
        if (is(at, inner)) at = partner(at, step);
      }
    }
    reject(i, "\"" + own + "\" has no partner");
  }

  // Braces of namespaces do not count.
  void follow_braces(size_t i) {
    if (is(i, "}") && !braces_.empty()) braces_.pop_back();
    if (!is(i, "{")) return;
    bool of_namespace = false;
    for (size_t at = i; at-- > 0 && !is(at, ";") && !is(at, "{") && !is(at, "}") && !is(at, ")");) {
      const bool linkage = is(at, "extern") && tokens_[at + 1].kind == SourceToken::Kind::literal;
      of_namespace = of_namespace || is(at, "namespace") || linkage;
    }
    braces_.push_back(!of_namespace);
  }
  bool in_function() const {
    return std::find(braces_.begin(), braces_.end(), true) != braces_.end();
  }

  void include(size_t i) {
    const std::string other = included_(word(i));
    if (!other.empty()) edits_.push_back({tokens_[i].begin, tokens_[i].end, other});
  }

  // --- kernel<T><<<grid, block>>>(x): launch("kernel<T>", [=](auto... a) { kernel<T>(a...); },
  // Config(grid, block), x)

  // The first token of the expression that ends before token i.
  size_t callee(size_t i) const {
    size_t at = i;
    for (;;) {
      if (at == 0) reject(i, "a launch of nothing");
      --at;
      if (is(at, ")")) return partner(at, -1);
      if (is(at, ">")) at = partner(at, -1) - 1;
      if (!is_name(at)) reject(i, "a launch of what is no kernel's name");
      if (at < 2 || !is(at - 1, ":") || !is(at - 2, ":")) return at;
      at -= 2;
      if (at == 0 || (!is_name(at - 1) && !is(at - 1, ">")) || is(at - 1, "return")) return at;
    }
  }
  size_t launch(size_t i) {
    const size_t first = callee(i);
    size_t end = i + 3;
    while (end < tokens_.size() && !is_triple(end, '>')) {
      if (is(end, ";")) reject(i, "a launch without >>>");
      end = is(end, "(") || is(end, "{") || is(end, "[") ? partner(end, 1) + 1 : end + 1;
    }
    if (end >= tokens_.size() || !is(end + 3, "(")) reject(i, "a launch without arguments");
    std::string name;
    for (size_t at = first; at < i; ++at) name += word(at) + (is(at, ",") ? " " : "");
    std::erase(name, '"');
    edits_.push_back({tokens_[first].begin, tokens_[first].begin,
                      text(kPlain, "launch(\"", name, "\", [=](auto... plumb_arguments) { ")});
    edits_.push_back({tokens_[i].begin, tokens_[i + 2].end,
                      text("(plumb_arguments...); }, ", kPlain, "Config(")});
    const bool any = !is(end + 4, ")");
    edits_.push_back({tokens_[end].begin, tokens_[end + 3].end, any ? "), " : ")"});
    return end + 3;
  }

  // --- __shared__ T a[2][3], b: auto& a = shared<T[2][3], its tag>(); ...

  struct Variable {
    std::string name, type;  // with * and [..]
    bool open = false;       // []
  };
  // Of "alignas(16)" at i the alignment, and i behind it.
  bool takes_alignment(size_t& i, std::string& alignment) const {
    if (!is(i, "alignas") && !is(i, "__align__")) return false;
    const size_t close = partner(i + 1, 1);
    alignment = span(i + 2, close);
    i = close + 1;
    return true;
  }
  std::string type_at(size_t& i, std::string& alignment) const {
    constexpr std::array<std::string_view, 15> kWords = {
        "const", "volatile", "unsigned", "signed", "long", "short",    "int",   "char",
        "float", "double",   "bool",     "struct", "void", "typename", "static"};
    std::string type;
    bool named = false;
    for (;;) {
      if (takes_alignment(i, alignment)) continue;
      const std::string here = word(i);
      const bool known = std::find(kWords.begin(), kWords.end(), here) != kWords.end();
      if (known) {
        if (here != "static") type += here + " ";
        named = named || (here != "const" && here != "volatile" && here != "struct" &&
                          here != "typename" && here != "static");
        ++i;
      } else if (!named && (is_name(i) || is(i, ":"))) {
        const size_t first = i;
        while (is(i, ":") || is_name(i)) {
          i = is(i + 1, "<") && is_name(i) ? partner(i + 1, 1) + 1 : i + 1;
          if (!is(i, ":")) break;
          while (is(i, ":")) ++i;
          if (is(i, "template")) ++i;
        }
        type += span(first, i) + " ";
        named = true;
      } else {
        return type;
      }
    }
  }
  Variable variable_at(size_t& i, const std::string& type, std::string& alignment) const {
    Variable out;
    out.type = type;
    for (; is(i, "*"); ++i) out.type += "*";
    static_cast<void>(takes_alignment(i, alignment));
    if (!is_name(i)) reject(i, "a __shared__ variable without a name");
    out.name = word(i++);
    while (is(i, "[")) {
      const size_t close = partner(i, 1);
      if (close == i + 1) out.open = true;
      else out.type += span(i, close + 1);
      i = close + 1;
    }
    return out;
  }
  std::string declaration(const Variable& it, bool dynamic, const std::string& alignment) {
    if (dynamic && !in_function())
      return text("static ", kPlain, "Dynamic<", it.type, "> ", it.name, "; ");
    if (dynamic) return text(it.type, "* ", it.name, " = ", kPlain, "dynamic<", it.type, ">(); ");
    const std::string tag = text("plumb_shared_", ++tags_);
    return text("struct ", tag, "; auto& ", it.name, " = ", kPlain, "shared<", it.type, ", ", tag,
                alignment.empty() ? "" : ", ", alignment, ">(); ");
  }
  size_t shared_variables(size_t i) {
    size_t first = i;
    bool dynamic = false;
    std::string qualifiers, alignment;
    while (first > 0 && (is(first - 1, "extern") || is(first - 1, "static") ||
                         is(first - 1, "volatile") || is(first - 1, "const"))) {
      --first;
      dynamic = dynamic || is(first, "extern");
      if (is(first, "volatile")) qualifiers = "volatile ";
    }
    size_t at = i + 1;
    if (is(at, "extern")) dynamic = true, ++at;
    const std::string type = qualifiers + type_at(at, alignment);
    std::string with;
    for (;; ++at) {
      const Variable it = variable_at(at, type, alignment);
      with += declaration(it, dynamic || it.open, alignment);
      if (!is(at, ",")) break;
    }
    if (!is(at, ";"))
      reject(at, "a __shared__ variable cannot be read here: write \"type name[n];\"");
    const size_t begin = tokens_[first].begin, end = tokens_[at].end;
    const std::string before = text_.substr(begin, end - begin);
    with += std::string(static_cast<size_t>(std::count(before.begin(), before.end(), '\n')), '\n');
    edits_.push_back({begin, end, with});
    return at;
  }

  const std::string& text_;
  const std::string file_;
  const std::function<std::string(const std::string&)>& included_;
  const std::vector<SourceToken> tokens_;
  std::vector<Edit> edits_;
  std::vector<bool> braces_;  // open ones: not of a namespace
  int tags_ = 0;
};

}  // namespace

std::string emulated_source(const std::string& text, const std::string& file,
                            const std::function<std::string(const std::string&)>& included) {
  return SourceTranslation(text, file, included).result();
}

}  // namespace plumb::harness
