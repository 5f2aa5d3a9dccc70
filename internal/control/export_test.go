package control

// What the fuzz targets look into.
var (
	DecodeActor    = decodeActor
	EncodeActor    = encodeActor
	DecodeWorker   = decodeWorker
	EncodeWorker   = encodeWorker
	DecodeTemplate = decodeTemplate
	EncodeTemplate = encodeTemplate
	NamePage       = namePage
	RefPage        = refPage
)
