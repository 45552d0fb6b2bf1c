// OpenAI's JavaScript client: `drive.mjs CASE BASE_URL MODEL IMAGE`.
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const [name, baseURL, model, image] = process.argv.slice(2);
const url = `data:image/png;base64,${readFileSync(image).toString("base64")}`;
const client = new OpenAI({ baseURL, apiKey: "none" });
const prompts = ["Text Recognition:", 'Fill this in: {"date": ""}', "Table Recognition:"];

function ask(prompt, members = {}) {
  const content = [{ type: "image_url", image_url: { url } }, { type: "text", text: prompt }];
  return { model, messages: [{ role: "user", content }], ...members };
}

const schema = {
  type: "object",
  properties: { date: { type: "string" }, total: { type: "string" } },
  required: ["date", "total"],
  additionalProperties: false,
};

const cases = {
  async read() {
    const chat = client.chat.completions;
    const { data: text, response } = await chat.create(ask("Text Recognition:")).withResponse();
    const table = await chat.create(ask("Table Recognition:"), { headers: { "x-ocr-route": "table" } });
    const format = { type: "json_schema", json_schema: { name: "receipt", schema, strict: true } };
    const fields = await chat.create(ask("Read the receipt.", { response_format: format }));
    const tools = [{ type: "function", function: { name: "receipt", parameters: schema } }];
    const called = await chat.create(
      ask("Read the receipt.", { tools, tool_choice: { type: "function", function: { name: "receipt" } } }),
    );
    const pieces = [];
    for await (const chunk of await chat.create(ask("Text Recognition:", { stream: true }))) {
      if (chunk.choices[0]?.delta.content) pieces.push(chunk.choices[0].delta.content);
    }
    const streamed = await chat.stream(ask("Text Recognition:")).finalContent();
    const refused = await chat.create(ask("OCR:", { model: "gpt-5" })).catch((error) => error);
    return {
      route: response.headers.get("x-ocr-route"),
      text: text.choices[0].message.content,
      table: table.choices[0].message.content,
      fields: JSON.parse(fields.choices[0].message.content),
      called: JSON.parse(called.choices[0].message.tool_calls[0].function.arguments),
      pieces,
      streamed,
      refused: [refused instanceof OpenAI.NotFoundError, refused.code],
    };
  },
  async at_once() {
    const asked = Array.from({ length: 60 }, (_, place) => client.chat.completions.create(ask(prompts[place % 3])));
    const replies = await Promise.all(asked);
    return replies.filter((reply) => reply.choices[0].message.content).length;
  },
  async one() {
    return (await client.chat.completions.create(ask("Text Recognition:"))).choices[0].message.content;
  },
  async abort() {
    const endless = ask("Text Recognition:", { stream: true, max_tokens: 1_000_000, ignore_eos: true });
    for await (const chunk of await client.chat.completions.create(endless)) {
      if (chunk.choices[0]?.delta.content) break; // which aborts the request
    }
    return "left";
  },
  async leave() {
    const endless = ask("Text Recognition:", { stream: true, max_tokens: 1_000_000, ignore_eos: true });
    for await (const chunk of await client.chat.completions.create(endless)) {
      if (chunk.choices[0]?.delta.content) console.log(chunk.choices[0].delta.content);
    }
  },
  async responses() {
    const content = [
      { type: "input_image", image_url: url, detail: "auto" },
      { type: "input_text", text: "Text Recognition:" },
    ];
    const asked = { model, input: [{ role: "user", content }] };
    const text = await client.responses.create(asked);
    const kinds = [];
    for await (const event of await client.responses.create({ ...asked, stream: true })) kinds.push(event.type);
    return { text: text.output_text, kinds: [kinds[0], kinds.at(-1)] };
  },
};

console.log(JSON.stringify(await cases[name]()));
