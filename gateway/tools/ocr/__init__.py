"""`ocr-gateway ocr`: documents through POST /v1/ocr, for people.

Begin with `ocr_command`. `input_files` finds documents and the places of their results, `ocr_client` sends
them and is the only module that talks HTTP, `document_result` and `plain_text` write what came,
`ocr_progress` shows how far it is. Imports only wire, errors and connect_failure: the gateway that it talks
to may be elsewhere.
"""
