#include "blocks/params.h"

#include "kernels/core/error.h"
#include "tests/blocks/support.h"

using Catch::Contains;

namespace plumb::blocks::testing {

TEST_CASE("Params: each type is read as itself and as nothing else") {
  Params inner("test: nested");
  inner.set("window", 5.0);
  const Params p = params_of({{"number", 2.5},
                              {"whole", 7.0},
                              {"bool", true},
                              {"string", std::string("half")},
                              {"list", std::vector<double>{1, 2}},
                              {"null", Params::Null{}},
                              {"object", inner}});
  CHECK(p.number("number") == 2.5);
  CHECK(p.integer("whole") == 7);
  CHECK(p.boolean("bool"));
  CHECK(p.string("string") == "half");
  CHECK(p.numbers("list") == std::vector<double>{1, 2});
  CHECK(p.object("object").integer("window") == 5);
  CHECK(p.is_null("null"));
  CHECK_FALSE(p.is_null("number"));
  CHECK_FALSE(p.is_null("absent"));
  CHECK(p.number_or_null("number") == 2.5);
  CHECK_FALSE(p.number_or_null("null").has_value());
  CHECK(p.integer_or_null("whole") == 7);
  CHECK_FALSE(p.integer_or_null("null").has_value());

  const auto is_a = [](const char* name, const char* type, const char* expected) {
    return "test: parameter \"" + std::string(name) + "\" is a " + type + ", expected a " +
           expected;
  };
  CHECK(message_of<BadInput>([&] { p.number("string"); }) == is_a("string", "string", "number"));
  CHECK(message_of<BadInput>([&] { p.number("bool"); }) == is_a("bool", "bool", "number"));
  CHECK(message_of<BadInput>([&] { p.number("null"); }) == is_a("null", "null", "number"));
  CHECK(message_of<BadInput>([&] { p.boolean("number"); }) == is_a("number", "number", "bool"));
  CHECK(message_of<BadInput>([&] { p.string("list"); }) == is_a("list", "number list", "string"));
  CHECK(message_of<BadInput>([&] { p.numbers("object"); }) ==
        is_a("object", "object", "number list"));
  CHECK(message_of<BadInput>([&] { p.object("whole"); }) == is_a("whole", "number", "object"));
  CHECK(message_of<BadInput>([&] { p.integer_or_null("bool"); }) == is_a("bool", "bool", "number"));
}

TEST_CASE("Params: an integer is whole and exact") {
  const Params p = params_of({{"half", 0.5}, {"huge", 0x1p60}, {"negative", -3.0}});
  CHECK(p.integer("negative") == -3);
  CHECK_THAT(message_of<BadInput>([&] { p.integer("half"); }),
             Contains("\"half\" is 0.5, expected an integer"));
  CHECK_THAT(message_of<BadInput>([&] { p.integer("huge"); }), Contains("expected an integer"));
}

TEST_CASE("Params: what is missing is named") {
  const Params p = params_of({{"eps", 1e-5}});
  const std::string expected = "test: parameter \"scale\" is missing";
  CHECK(message_of<BadInput>([&] { p.number("scale"); }) == expected);
  CHECK(message_of<BadInput>([&] { p.number_or_null("scale"); }) == expected);
  CHECK(message_of<BadInput>([&] { p.object("scale"); }) == expected);
}

TEST_CASE("Params: what was not read is named, nested objects included") {
  Params inner("nested");
  inner.set("eps", 1e-5);
  inner.set("cap", 2.0);
  const Params p = params_of({{"a", 1.0}, {"b", 2.0}, {"norm", inner}});
  CHECK_THAT(message_of<BadInput>([&] { p.finish(); }), Contains("parameter(s) a, b, norm;"));
  p.number("a");
  p.object("norm").number("eps");
  CHECK_THAT(message_of<BadInput>([&] { p.finish(); }), Contains("parameter(s) b, norm.cap;"));
  p.ignore("b");
  p.ignore("absent");
  p.object("norm").number("cap");
  CHECK_NOTHROW(p.finish());
  p.rewind();
  CHECK_THAT(message_of<BadInput>([&] { p.finish(); }), Contains("parameter(s) a, b, norm;"));
  p.number("a"), p.number("b"), p.object("norm");
  CHECK_THAT(message_of<BadInput>([&] { p.finish(); }), Contains("norm.cap, norm.eps"));
}

TEST_CASE("Weights: a prefix is part of the key") {
  Bench bench("cpu");
  const Tensor q = bench.zeros({2}), bias = bench.zeros({3});
  const Weights w = weights_of({{"self_attn.q_proj.weight", q}, {"self_attn.q_proj.bias", bias}});
  const Weights projection = w / "self_attn" / "q_proj";
  CHECK(projection.has("weight"));
  CHECK_FALSE(w.has("weight"));
  CHECK(projection["weight"].raw() == q.raw());
  CHECK_FALSE(projection.find("scale").defined());
  CHECK(message_of<BadInput>([&] { (w / "mlp")["weight"]; }) ==
        "test: weight \"mlp.weight\" is missing");
  CHECK(message_of<BadInput>([&] { w.finish(); }) ==
        "test: the block does not use the weight(s) self_attn.q_proj.bias");
  projection.find("bias");
  CHECK_NOTHROW(w.finish());
}

}  // namespace plumb::blocks::testing
