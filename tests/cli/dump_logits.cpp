// SPDX-License-Identifier: Apache-2.0
// Writes a model's logits to a file, for the comparison with the numpy oracle.
//
//   dump_logits MODEL OUT PREFILL FROM [--rope-scaling ...] < ids      float32 [tokens - FROM, vocabulary]
// The first PREFILL tokens go in together (the way of a prompt), the others one by one (the way of generation).
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <heed/model/decoder.hpp>

#include "cli/rope_options.hpp"

namespace {

using heed::model::Token;

std::vector<Token> read_ids(std::istream& in) {
  std::vector<Token> ids;
  for (Token id = 0; in >> id;) ids.push_back(id);
  return ids;
}

struct Arguments {
  std::string model, out;
  std::size_t prefill = 0, from = 0;
  heed::cli::RopeOptions rope;
};

void dump(const Arguments& arguments) {
  const auto& [model, out, prefill, from, rope] = arguments;
  const auto ids = read_ids(std::cin);
  const auto file = heed::model::GgufFile::open(model);
  const auto chosen = heed::cli::choose_rope(rope, heed::model::read_config(file), 0);
  const heed::model::Decoder decoder(file, chosen.rope);
  heed::model::Session session(decoder, static_cast<std::int64_t>(ids.size()));
  std::ofstream stream(out, std::ios::binary);
  stream.exceptions(std::ios::failbit | std::ios::badbit);
  const auto write = [&](std::size_t index, std::span<const float> logits) {
    if (index >= arguments.from)
      stream.write(reinterpret_cast<const char*>(logits.data()), static_cast<std::streamsize>(logits.size_bytes()));
  };
  const std::span<const Token> tokens(ids);
  session.feed_all(tokens.first(prefill),
                   [&](std::int64_t index, std::span<const float> logits) { write(static_cast<std::size_t>(index), logits); });
  for (std::size_t i = prefill; i < ids.size(); ++i) write(i, session.feed(tokens.subspan(i, 1)));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Logits of a model.");
  Arguments arguments;
  app.add_option("model", arguments.model)->required();
  app.add_option("out", arguments.out)->required();
  app.add_option("prefill", arguments.prefill)->required();
  app.add_option("from", arguments.from)->required();
  heed::cli::add_rope_options(app, arguments.rope);
  CLI11_PARSE(app, argc, argv);
  try {
    dump(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dump_logits: %s\n", error.what());
    return 1;
  }
  return 0;
}
