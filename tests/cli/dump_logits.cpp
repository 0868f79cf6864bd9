// SPDX-License-Identifier: Apache-2.0
// Writes a model's logits to a file, for the comparison with the numpy oracle.
//
//   dump_logits MODEL OUT PREFILL FROM < ids      float32 [tokens - FROM, vocabulary]
// The first PREFILL tokens go in together (the way of a prompt), the others one by one (the way of generation).
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include <heed/model/decoder.hpp>

namespace {

using heed::model::Token;

std::vector<Token> read_ids(std::istream& in) {
  std::vector<Token> ids;
  for (Token id = 0; in >> id;) ids.push_back(id);
  return ids;
}

void dump(const std::string& model, const std::string& out, std::size_t prefill, std::size_t from) {
  const auto ids = read_ids(std::cin);
  const auto file = heed::model::GgufFile::open(model);
  const heed::model::Decoder decoder(file);
  heed::model::Session session(decoder, static_cast<std::int64_t>(ids.size()));
  std::ofstream stream(out, std::ios::binary);
  stream.exceptions(std::ios::failbit | std::ios::badbit);
  const auto write = [&](std::size_t index, std::span<const float> logits) {
    if (index >= from) stream.write(reinterpret_cast<const char*>(logits.data()), static_cast<std::streamsize>(logits.size_bytes()));
  };
  const std::span<const Token> tokens(ids);
  session.feed_all(tokens.first(prefill),
                   [&](std::int64_t index, std::span<const float> logits) { write(static_cast<std::size_t>(index), logits); });
  for (std::size_t i = prefill; i < ids.size(); ++i) write(i, session.feed(tokens.subspan(i, 1)));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: dump_logits MODEL OUT PREFILL FROM < ids\n");
    return 2;
  }
  try {
    dump(argv[1], argv[2], std::strtoul(argv[3], nullptr, 10), std::strtoul(argv[4], nullptr, 10));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dump_logits: %s\n", error.what());
    return 1;
  }
  return 0;
}
